package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func adminNodeCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "node", Short: "Look at one node, or move it on and off the market"}
	command.AddCommand(nodeShowCommand(o), nodeMoveCommand(o), nodeReviewCommand(o))
	return command
}

func nodeShowCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show NODE",
		Short: "Show what is the matter with a node, what holds it and what its agent did last, by name or id",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := nodeID(ctx, c, args[0])
			if err != nil {
				return err
			}
			node, _, err := getNode(ctx, c, id)
			if err != nil {
				return err
			}
			return p.list(node, func(w io.Writer) { describeNode(w, node) })
		}),
	}
}

func nodeMoveCommand(o *options) *cobra.Command {
	var reason, exit string
	command := &cobra.Command{
		Use:   "move NODE STATE",
		Short: "Move a node: maintenance, verifying (test it again), available, quarantined or retired",
		Long: "Move a node. In maintenance it is off the market, and running leases stay; verifying has it tested, and puts it on the market when\n" +
			"nothing speaks against it. These two a provider may do with its own nodes; the rest is the operator's.\n\n" +
			"Slots that were quarantined are cleaned again while the node is verifying: access ended, ports seen clear, wiped with a certificate; then it is\n" +
			"available, or quarantined again with the reason. A node that is retired takes them along unwiped; that needs a --reason, which stays on record.",
		Args: cobra.ExactArgs(2),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			node, err := moveNode(ctx, c, args[0], client.NodeStateUpdate{
				State: client.NodeState(args[1]), Reason: optional(reason), Exit: (*client.NodeStateUpdateExit)(optional(exit)),
			})
			if err != nil {
				return err
			}
			return p.list(node, func(w io.Writer) { describeNode(w, node) })
		}),
	}
	command.Flags().StringVar(&reason, "reason", "", "why, for people")
	command.Flags().StringVar(&exit, "exit", "", "the way out of a quarantine: retest, repair or retire")
	return command
}

func moveNode(ctx context.Context, c *connection, name string, update client.NodeStateUpdate) (*client.NodeDetail, error) {
	if !update.State.Valid() {
		return nil, usagef("%q is no state of a node: maintenance, verifying, available, quarantined or retired", update.State)
	}
	id, err := nodeID(ctx, c, name)
	if err != nil {
		return nil, err
	}
	_, etag, err := getNode(ctx, c, id)
	if err != nil {
		return nil, err
	}
	answer, err := c.AdminSetNodeStateWithResponse(ctx, id, &client.AdminSetNodeStateParams{IdempotencyKey: fresh(), IfMatch: &etag}, update)
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	return take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}

func getNode(ctx context.Context, c *connection, id string) (*client.NodeDetail, string, error) {
	answer, err := c.AdminGetNodeWithResponse(ctx, id)
	if err != nil {
		return nil, "", unreachable(c.server, err)
	}
	node, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return nil, "", err
	}
	return node, answer.HTTPResponse.Header.Get("ETag"), nil
}

// nodeID finds a node by its id, by its name, or by site/name where sites share names.
func nodeID(ctx context.Context, c *connection, name string) (string, error) {
	if strings.HasPrefix(name, "node_") {
		return name, nil
	}
	all, err := adminNodes(ctx, c)
	if err != nil {
		return "", err
	}
	var found []client.Node
	for _, n := range all.Items {
		if n.Name == name || n.Site+"/"+n.Name == name {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return "", &Problem{Status: http.StatusNotFound, Title: fmt.Sprintf("there is no node %q; see: leasehold admin nodes", name)}
	case 1:
		return found[0].ID, nil
	default:
		return "", usagef("%d sites have a node %q: say which, e.g. %s/%s", len(found), name, found[0].Site, name)
	}
}

func describeNode(w io.Writer, d *client.NodeDetail) {
	n := d.Node
	state := string(n.State)
	if n.StateReason != "" {
		state += ": " + n.StateReason
	}
	if n.StateExit != "" {
		state += " (way out: " + n.StateExit + ")"
	}
	row(w, "Node", n.Name+" at "+n.Site+" ("+n.ID+")")
	row(w, "Hardware", n.Hardware+", "+strings.ReplaceAll(string(n.Mode), "_", " "))
	row(w, "State", state)
	row(w, "Leased", fmt.Sprintf("%d of %d slots", n.LeasedSlots, n.TotalSlots))
	if n.LastSeenAt != nil {
		row(w, "Last seen", instant(*n.LastSeenAt))
	}
	for _, c := range n.Conditions {
		row(w, "Condition", strings.TrimSpace(c.Name+" "+c.Device)+", "+strings.ReplaceAll(string(c.Class), "_", " ")+", since "+instant(c.Onset))
		row(w, "", c.Evidence+"; ends when: "+strings.ReplaceAll(c.Exit, "_", " "))
	}
	for _, a := range d.Allocations {
		row(w, "Held", fmt.Sprintf("[%d, %d) %s, %s %s %s", a.Slots.From, a.Slots.To, window(a.Occupied), a.State, or(a.LeaseID, a.Purpose), a.Reason))
	}
	for _, change := range d.Changes {
		row(w, "Change", fmt.Sprintf("%s: %s → %s, %s", change.What, change.Before, change.After, change.State))
	}
	const latest = 5
	for _, operation := range d.Operations[:min(latest, len(d.Operations))] {
		row(w, "Work", strings.TrimSpace(fmt.Sprintf("%s %s %s %s", instant(operation.CreatedAt), operation.Kind, operation.State, or(operation.Fault, ""))))
	}
}
