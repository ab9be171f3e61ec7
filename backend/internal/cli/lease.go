package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func leaseCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "lease", Aliases: []string{"leases"}, Short: "Book and manage leases"}
	command.AddCommand(leaseCreateCommand(o), leaseListCommand(o), leaseShowCommand(o), leaseWatchCommand(o), leaseExtendCommand(o), leaseEndCommand(o),
		leaseSSHCommand(o), leaseEventsCommand(o), leaseMetricsCommand(o))
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
			if wait && !dryRun {
				if lease, err = watch(ctx, c, lease.ID, p, client.LeaseStateActive); err != nil {
					return err
				}
			}
			return p.show(lease, func(w io.Writer) { describeLease(w, lease) })
		}),
	}
	command.Flags().StringVar(&name, "name", "", "a name for people")
	command.Flags().StringSliceVar(&keys, "ssh-key", nil, "names or ids of your SSH keys (default: all of them)")
	command.Flags().BoolVar(&wait, "wait", false, "wait until it is active, with a progress bar")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "check everything and book nothing")
	return command
}

// keyIDs resolves names or ids of SSH keys; none means all.
func keyIDs(ctx context.Context, c *connection, wanted []string) ([]string, error) {
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
			return nil, fmt.Errorf("add an SSH key first: leasehold keys add ssh NAME FILE")
		}
		return all, nil
	}
	ids := make([]string, len(wanted))
	for i, name := range wanted {
		id, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("you have no SSH key %q; see: leasehold keys list", name)
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
		row(w, "Remaining", time.Until(l.End).Round(time.Second))
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

func leaseWatchCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "watch LEASE",
		Short: "Follow a lease to its end",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			lease, err := watch(ctx, c, args[0], p, client.LeaseStateClosed)
			if err != nil {
				return err
			}
			return p.show(lease, func(w io.Writer) { describeLease(w, lease) })
		}),
	}
}

// watch long-polls until the lease is in the wanted state or a later one, and draws its progress for people.
func watch(ctx context.Context, c *connection, id string, p printer, wanted client.LeaseState) (*client.Lease, error) {
	wait, after := "30s", int64(-1)
	for {
		lease, _, err := getLease(ctx, c, id, &client.GetLeaseParams{Wait: &wait, AfterEvent: &after})
		if err != nil {
			return nil, err
		}
		if !p.json {
			fmt.Fprintf(p.out, "\r\x1b[K%s %3d %%  %s %s", bar(lease.Progress.Percent), lease.Progress.Percent, lease.State, lease.Progress.Step)
		}
		if rank(lease.State) >= rank(wanted) {
			if !p.json {
				fmt.Fprintln(p.out)
			}
			return lease, nil
		}
		after = lease.LastEvent
	}
}

func rank(s client.LeaseState) int {
	for i, state := range []client.LeaseState{
		client.LeaseStateReserved, client.LeaseStateProvisioning, client.LeaseStateActive, client.LeaseStateReleasing, client.LeaseStateClosed,
	} {
		if s == state {
			return i
		}
	}
	return len(client.LeaseStateClosed) // cancelled: later than all
}

func leaseExtendCommand(o *options) *cobra.Command {
	var by time.Duration
	var to string
	var quoteOnly bool
	command := &cobra.Command{
		Use:   "extend LEASE",
		Short: "Move the end of a lease",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			lease, etag, err := getLease(ctx, c, args[0], nil)
			if err != nil {
				return err
			}
			end := lease.End.Add(by)
			if to != "" {
				if end, err = parseInstant("to", to); err != nil {
					return err
				}
			}
			answer, err := c.ExtendLeaseWithResponse(ctx, args[0], &client.ExtendLeaseParams{IdempotencyKey: fresh(), IfMatch: &etag, DryRun: &quoteOnly},
				client.ExtensionCreate{End: end})
			if err != nil {
				return unreachable(c.server, err)
			}
			extension, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(extension, func(w io.Writer) {
				row(w, "Added", window(extension.Window))
				row(w, "Price", rate(extension.Rate))
				row(w, "Costs", amount(extension.Total)+" at worst")
				row(w, "Done", yes(extension.Applied))
			})
		}),
	}
	command.Flags().DurationVar(&by, "by", 0, "how much longer, e.g. 2h")
	command.Flags().StringVar(&to, "to", "", "the new end, RFC 3339")
	command.Flags().BoolVar(&quoteOnly, "dry-run", false, "only show what it would cost")
	command.MarkFlagsOneRequired("by", "to")
	command.MarkFlagsMutuallyExclusive("by", "to")
	return command
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no, this was only the quote"
}

func leaseEndCommand(o *options) *cobra.Command {
	var confirmed bool
	command := &cobra.Command{
		Use:     "end LEASE",
		Aliases: []string{"cancel"},
		Short:   "Cancel a lease before its start, or end it early",
		Long:    "Shows what is given back and what it costs; with --yes does it.",
		Args:    cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			_, etag, err := getLease(ctx, c, args[0], nil)
			if err != nil {
				return err
			}
			dryRun := !confirmed
			answer, err := c.CancelLeaseWithResponse(ctx, args[0], &client.CancelLeaseParams{IdempotencyKey: fresh(), IfMatch: &etag, DryRun: &dryRun})
			if err != nil {
				return unreachable(c.server, err)
			}
			result, err := take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(result, func(w io.Writer) {
				row(w, "Ends", instant(result.EffectiveAt)+" ("+string(result.Kind)+")")
				row(w, "Refund", amount(result.Refund))
				row(w, "Fee", amount(result.Fee))
				if !result.Applied {
					row(w, "Do it", "leasehold lease end "+args[0]+" --yes")
				}
			})
		}),
	}
	command.Flags().BoolVarP(&confirmed, "yes", "y", false, "do it")
	return command
}

func leaseSSHCommand(o *options) *cobra.Command {
	var node, identity string
	command := &cobra.Command{
		Use:   "ssh LEASE [-- COMMAND…]",
		Short: "Log in to a node of the lease",
		Long:  "Log in to a node of the lease with the system's ssh. The node's host keys come from the lease, so a stranger in between is noticed.",
		Args:  cobra.MinimumNArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, _ printer, args []string) error {
			nodes, err := leaseNodes(ctx, c, args[0])
			if err != nil {
				return err
			}
			for _, n := range nodes.Items {
				if n.Access != nil && (node == "" || node == n.Node) {
					return runSSH(ctx, n.Access, identity, args[1:])
				}
			}
			return fmt.Errorf("no node of this lease can be logged in to now; see: leasehold lease show %s", args[0])
		}),
	}
	command.Flags().StringVar(&node, "node", "", "which node (default: the first)")
	command.Flags().StringVarP(&identity, "identity", "i", "", "private key file (default: ssh's own choice)")
	return command
}

func runSSH(ctx context.Context, access *client.Access, identity string, remote []string) error {
	dir, err := os.MkdirTemp("", "leasehold-ssh-")
	if err != nil {
		return fmt.Errorf("make a directory for known hosts: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	args, err := SSHArgs(dir, access, identity)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "ssh", append(args, remote...)...) //nolint:gosec // the user's own command line
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	return nil
}

// SSHArgs writes a known_hosts file with the lease's host keys into dir, and returns ssh's arguments up to the host.
func SSHArgs(dir string, access *client.Access, identity string) ([]string, error) {
	known := filepath.Join(dir, "known_hosts")
	var lines []byte
	for _, key := range access.HostKeys {
		lines = fmt.Appendf(lines, "[%s]:%d %s\n", access.Host, access.Port, key)
	}
	if err := os.WriteFile(known, lines, 0o600); err != nil {
		return nil, fmt.Errorf("write known hosts: %w", err)
	}
	args := []string{"-o", "UserKnownHostsFile=" + known, "-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=/dev/null", "-p", itoa(access.Port)}
	if identity != "" {
		args = append(args, "-i", identity, "-o", "IdentitiesOnly=yes")
	}
	return append(args, access.User+"@"+access.Host), nil
}

func leaseEventsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "events LEASE",
		Short: "Show the lease's log",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.ListLeaseEventsWithResponse(ctx, args[0], nil)
			if err != nil {
				return unreachable(c.server, err)
			}
			events, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(events, func(w io.Writer) {
				row(w, "#", "WHEN", "WHAT", "WHO", "DATA")
				for _, e := range events.Items {
					row(w, e.Seq, e.At.UTC().Format("15:04:05.000"), e.Type, e.Actor, compact(e.Data))
				}
			})
		}),
	}
}

func leaseMetricsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "metrics LEASE",
		Short: "Show the newest reading of every meter of the lease's devices",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.GetLeaseMetricsWithResponse(ctx, args[0], nil)
			if err != nil {
				return unreachable(c.server, err)
			}
			metrics, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(metrics, func(w io.Writer) {
				row(w, "NODE", "DEVICE", "METRIC", "VALUE", "AT")
				for _, s := range metrics.Series {
					if len(s.Points) == 0 {
						continue
					}
					last := s.Points[len(s.Points)-1]
					row(w, s.Node, s.Device, s.Metric, fmt.Sprintf("%.1f", last.Value), last.At.UTC().Format("15:04:05"))
				}
			})
		}),
	}
}
