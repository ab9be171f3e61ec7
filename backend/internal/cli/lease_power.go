package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func leasePowerCommand(o *options) *cobra.Command {
	var node string
	command := &cobra.Command{
		Use:   "power LEASE [start|stop|reboot|power_cycle]",
		Short: "Show or switch the power of a machine that is leased whole",
		Long: "Without an action, shows what was done and what was read back from the machine. stop asks the system first; reboot and power_cycle do not.\n" +
			"The clock of the lease goes on in any case.",
		Args:      cobra.RangeArgs(1, 2),
		ValidArgs: []string{"start", "stop", "reboot", "power_cycle"},
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			allocation, err := instanceOf(ctx, c, args[0], node)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				answer, err := c.GetLeaseNodePowerWithResponse(ctx, args[0], allocation)
				if err != nil {
					return unreachable(c.server, err)
				}
				return showPower(p)(take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse))
			}
			answer, err := c.SetLeaseNodePowerWithResponse(ctx, args[0], allocation, &client.SetLeaseNodePowerParams{IdempotencyKey: fresh()},
				client.PowerWish{Action: client.PowerWishAction(args[1])})
			if err != nil {
				return unreachable(c.server, err)
			}
			return showPower(p)(take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse))
		}),
	}
	command.Flags().StringVar(&node, "node", "", "which node (default: the lease's only one)")
	return command
}

// instanceOf finds the instance on the node of that name, or the lease's only one.
func instanceOf(ctx context.Context, c *connection, lease, node string) (string, error) {
	nodes, err := leaseNodes(ctx, c, lease)
	if err != nil {
		return "", err
	}
	found := ""
	for _, n := range nodes.Items {
		if node != "" && node != n.Node {
			continue
		}
		if found != "" {
			return "", &Problem{Status: http.StatusUnprocessableEntity, Title: "the lease has several nodes: say which one with --node"}
		}
		found = n.AllocationID
	}
	if found == "" {
		return "", &Problem{Status: http.StatusNotFound, Title: fmt.Sprintf("no node %q of this lease", node)}
	}
	return found, nil
}

func showPower(p printer) func(*client.LeaseNodePower, error) error {
	return func(power *client.LeaseNodePower, err error) error {
		if err != nil {
			return err
		}
		return p.show(power, func(w io.Writer) {
			row(w, "Power", string(power.Power)+", as it was read back last")
			for _, o := range power.Operations {
				line := o.AskedAt.Local().Format("2006-01-02 15:04:05") + "  " + string(o.State)
				if o.Detail != nil {
					line += ": " + *o.Detail
				}
				row(w, o.Action, line)
			}
		})
	}
}
