package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func leaseCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "lease", Aliases: []string{"leases"}, Short: "Book and manage leases"}
	command.AddCommand(leaseCreateCommand(o), leaseListCommand(o), leaseShowCommand(o), leaseWatchCommand(o), leaseExtendCommand(o), leaseEndCommand(o),
		leaseSSHCommand(o), leasePowerCommand(o), leaseEventsCommand(o), leaseMetricsCommand(o))
	return command
}

func leaseCreateCommand(o *options) *cobra.Command {
	var name string
	var keys []string
	var wait, dryRun bool
	command := &cobra.Command{
		Use:   "create QUOTE",
		Short: "Book a quote",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			ids, err := keyIDs(ctx, c, keys)
			if err != nil {
				return err
			}
			answer, err := c.CreateLeaseWithResponse(ctx, &client.CreateLeaseParams{IdempotencyKey: fresh(), DryRun: &dryRun},
				client.LeaseCreate{QuoteID: args[0], Name: optional(name), SSHKeyIds: ids})
			if err != nil {
				return unreachable(c.server, err)
			}
			lease, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			if wait {
				if lease, err = watch(ctx, c, lease.ID, p, client.LeaseStateActive); err != nil {
					return err
				}
			}
			return p.show(lease, func(w io.Writer) {
				describeLease(w, lease)
				if dryRun {
					row(w, "", "Nothing was booked: this is what it would be.")
				}
			})
		}),
	}
	command.Flags().StringVar(&name, "name", "", "a name for people")
	command.Flags().StringSliceVar(&keys, "ssh-key", nil, "names or ids of your SSH keys (default: all of them)")
	command.Flags().BoolVar(&wait, "wait", false, "wait until it is active, with a progress bar")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "check everything and book nothing")
	command.MarkFlagsMutuallyExclusive("wait", "dry-run")
	return command
}

// keyIDs resolves names or ids of SSH keys; none means all. Ids alone need no look at the list, which a program's key may not allow.
func keyIDs(ctx context.Context, c *connection, wanted []string) ([]string, error) {
	if len(wanted) > 0 && !slices.ContainsFunc(wanted, func(s string) bool { return !strings.HasPrefix(s, "sshkey_") }) {
		return wanted, nil
	}
	known, err := sshKeys(ctx, c)
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	var all []string
	for _, key := range known {
		byName[key.Name], byName[key.ID] = key.ID, key.ID
		all = append(all, key.ID)
	}
	if len(wanted) == 0 {
		if len(all) == 0 {
			return nil, fmt.Errorf("you have no SSH key yet, without which nobody could log in. Add one: %s", addKeyHint)
		}
		return all, nil
	}
	ids := make([]string, len(wanted))
	for i, name := range wanted {
		id, ok := byName[name]
		if !ok {
			return nil, &Problem{Status: http.StatusNotFound, Title: fmt.Sprintf("you have no SSH key %q; see: leasehold keys list", name)}
		}
		ids[i] = id
	}
	return ids, nil
}

func leaseListCommand(o *options) *cobra.Command {
	var states []string
	command := &cobra.Command{
		Use:   "list",
		Short: "List leases, newest first",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			all := client.LeaseList{Items: []client.Lease{}}
			var wanted *[]client.LeaseState
			if len(states) > 0 {
				wanted = &[]client.LeaseState{}
			}
			for _, s := range states {
				*wanted = append(*wanted, client.LeaseState(s))
			}
			err := pages(func(cursor *string) (*client.LeaseList, *httpResponse, error) {
				answer, err := c.ListLeasesWithResponse(ctx, &client.ListLeasesParams{Cursor: cursor, State: wanted})
				if err != nil {
					return nil, nil, unreachable(c.server, err)
				}
				page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
				return page, answer.HTTPResponse, err
			}, func(page *client.LeaseList) { all.Items = append(all.Items, page.Items...) })
			if err != nil {
				return err
			}
			return p.show(all, func(w io.Writer) {
				if len(all.Items) == 0 {
					row(w, "No such leases. Get an offer first: leasehold quote --type TYPE --duration 1h")
					return
				}
				row(w, "LEASE", "NAME", "WHAT", "WINDOW", "STATE", "CHARGED")
				for _, l := range all.Items {
					row(w, l.ID, l.Name, itoa(l.Instances)+" × "+l.InstanceType, window(client.Window{Start: l.Start, End: l.End}), stateOf(&l), amount(l.Charged))
				}
			})
		}),
	}
	command.Flags().StringSliceVar(&states, "state", nil, "only these states")
	return command
}

func stateOf(l *client.Lease) string {
	if l.Outcome != "" {
		return string(l.State) + " (" + string(l.Outcome) + ")"
	}
	return string(l.State)
}

func getLease(ctx context.Context, c *connection, id string, params *client.GetLeaseParams) (*client.Lease, string, error) {
	answer, err := c.GetLeaseWithResponse(ctx, id, params)
	if err != nil {
		return nil, "", unreachable(c.server, err)
	}
	lease, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return nil, "", err
	}
	return lease, answer.HTTPResponse.Header.Get("ETag"), nil
}

func leaseShowCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show LEASE",
		Short: "Show one lease with its nodes",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			lease, _, err := getLease(ctx, c, args[0], nil)
			if err != nil {
				return err
			}
			nodes, err := leaseNodes(ctx, c, args[0])
			if err != nil {
				return err
			}
			return p.show(map[string]any{"lease": lease, "nodes": nodes.Items}, func(w io.Writer) {
				describeLease(w, lease)
				row(w, "")
				row(w, "NODE", "SLOTS", "STATE", "STEP", "SSH")
				for _, n := range nodes.Items {
					ssh := "–"
					if n.Access != nil {
						ssh = n.Access.Command
					}
					row(w, n.Node, fmt.Sprintf("[%d, %d)", n.Slots.From, n.Slots.To), n.State, n.Progress.Step+" "+itoa(n.Progress.Percent)+" %", ssh)
				}
			})
		}),
	}
}

func leaseNodes(ctx context.Context, c *connection, id string) (*client.LeaseNodeList, error) {
	answer, err := c.ListLeaseNodesWithResponse(ctx, id)
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	return take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}

func describeLease(w io.Writer, l *client.Lease) {
	row(w, "Lease", l.ID)
	row(w, "Name", l.Name)
	row(w, "What", itoa(l.Instances)+" × "+l.InstanceType+" at "+l.Site)
	row(w, "When", window(client.Window{Start: l.Start, End: l.End})+", "+string(l.Class))
	row(w, "State", stateOf(l))
	if l.Reason != "" {
		row(w, "Why", l.Reason)
	}
	if l.State == client.LeaseStateActive {
		row(w, "Remaining", short(max(time.Until(l.End), 0).Round(time.Second)))
	}
	if l.Progress.Step != "" {
		row(w, "Progress", fmt.Sprintf("%s %d %% %s (%d of %d)", bar(l.Progress.Percent), l.Progress.Percent, l.Progress.Step, l.Progress.Done, l.Progress.Total))
	}
	row(w, "Held", amount(l.Held))
	row(w, "Charged", amount(l.Charged))
	if l.InvoiceID != nil {
		row(w, "Invoice", *l.InvoiceID)
	}
}
