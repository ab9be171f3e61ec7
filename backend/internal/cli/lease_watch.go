package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/leasehold/leasehold/backend/client"
)

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

// watch long-polls until the lease is in the wanted state or a later one, and shows its progress to people, beside the result.
func watch(ctx context.Context, c *connection, id string, p printer, wanted client.LeaseState) (*client.Lease, error) {
	wait, after, shown := "30s", int64(-1), ""
	for {
		lease, _, err := getLease(ctx, c, id, &client.GetLeaseParams{Wait: &wait, AfterEvent: &after})
		if err != nil {
			return nil, err
		}
		over := rank(lease.State) >= rank(wanted)
		shown = p.progress(lease, shown, over)
		if over {
			return lease, nil
		}
		after = lease.LastEvent
	}
}

// progress draws over the line before on a terminal, and elsewhere prints a line for what is new. It returns what it showed.
func (p printer) progress(lease *client.Lease, shown string, last bool) string {
	now := string(lease.State)
	if lease.Progress.Step != "" && !last {
		now = fmt.Sprintf("%s %3d %%  %s: %s, %d of %d", bar(lease.Progress.Percent), lease.Progress.Percent, now, lease.Progress.Step, lease.Progress.Done, lease.Progress.Total)
	}
	file, ok := p.err.(*os.File)
	switch {
	case ok && term.IsTerminal(int(file.Fd())):
		fmt.Fprintf(p.err, "\r\x1b[K%s", now)
		if last {
			fmt.Fprintln(p.err)
		}
	case now != shown:
		p.note(now)
	}
	return now
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

func leaseEventsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "events LEASE",
		Short: "Show the lease's log",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			events, err := leaseEvents(ctx, c, args[0])
			if err != nil {
				return err
			}
			return p.list(events, func(w io.Writer) {
				row(w, "#", "WHEN", "WHAT", "WHO", "DATA")
				for _, e := range events.Items {
					row(w, e.Seq, e.At.UTC().Format("15:04:05.000"), e.Type, e.Actor, compact(e.Data))
				}
			})
		}),
	}
}

// leaseEvents reads the whole log, page by page.
func leaseEvents(ctx context.Context, c *connection, id string) (*client.LeaseEventList, error) {
	all, limit, after := &client.LeaseEventList{Items: []client.LeaseEvent{}}, 200, int64(0)
	for {
		answer, err := c.ListLeaseEventsWithResponse(ctx, id, &client.ListLeaseEventsParams{After: &after, Limit: &limit})
		if err != nil {
			return nil, unreachable(c.server, err)
		}
		page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, page.Items...)
		if len(page.Items) < limit {
			return all, nil
		}
		after = page.Items[len(page.Items)-1].Seq
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
				if len(metrics.Series) == 0 {
					row(w, "No readings yet: they begin some seconds after the lease is active.")
					return
				}
				row(w, "NODE", "DEVICE", "METRIC", "VALUE", "AT")
				for _, s := range metrics.Series {
					if len(s.Points) == 0 {
						continue
					}
					last := s.Points[len(s.Points)-1]
					row(w, s.Node, s.Device, s.Metric, strconv.FormatFloat(last.Value, 'f', -1, 64), last.At.UTC().Format("15:04:05"))
				}
			})
		}),
	}
}

// compact renders an event's data on one line.
func compact(data map[string]any) string {
	if len(data) == 0 {
		return ""
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Sprint(data)
	}
	return string(raw)
}
