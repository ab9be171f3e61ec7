package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func nodeReviewCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "review NODE accept|reject",
		Short: "Decide what differs from what was accepted of a node: parts, firmware, or where its ports hang",
		Args:  cobra.ExactArgs(2),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			decision, ok := map[string]client.ChangeDecisionDecision{
				"accept": client.ChangeDecisionDecisionAccepted, "reject": client.ChangeDecisionDecisionRejected,
			}[args[1]]
			if !ok {
				return usagef("%q is no decision: accept or reject", args[1])
			}
			id, err := nodeID(ctx, c, args[0])
			if err != nil {
				return err
			}
			_, etag, err := getNode(ctx, c, id)
			if err != nil {
				return err
			}
			answer, err := c.AdminSettleChangesWithResponse(ctx, id, &client.AdminSettleChangesParams{IdempotencyKey: fresh(), IfMatch: &etag},
				client.ChangeDecision{Decision: decision})
			if err != nil {
				return unreachable(c.server, err)
			}
			node, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.list(node, func(w io.Writer) { describeNode(w, node) })
		}),
	}
}
