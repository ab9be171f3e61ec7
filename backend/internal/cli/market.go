package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func marketCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "market", Short: "See what is for rent"}
	command.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List instance types with prices and what is free now",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			answer, err := c.ListInstanceTypesWithResponse(ctx)
			if err != nil {
				return unreachable(c.server, err)
			}
			types, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(types, func(w io.Writer) {
				row(w, "TYPE", "SITE", "GPU", "PRICE", "FREE", "TITLE")
				for _, t := range types.Items {
					for _, offer := range t.Offers {
						row(w, t.Name, offer.Site, t.GPUModel, rate(offer.Rate), freeOf(offer), t.Title)
					}
				}
			})
		}),
	})
	command.AddCommand(searchCommand(o))
	return command
}

func freeOf(offer client.Offer) string {
	return itoa(offer.FreeNow) + "/" + itoa(offer.TotalInstances)
}

// wish is what somebody looks for, from flags.
type wish struct {
	instanceType, site, topology, start, end string
	instances                                int
	duration                                 span
}

func (f *wish) bind(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.instanceType, "type", "", "instance type, e.g. h100-sxm.8x.ndr")
	flags.IntVarP(&f.instances, "instances", "n", 1, "how many instances")
	flags.StringVar(&f.site, "site", "", "site (default: the best)")
	flags.StringVar(&f.topology, "topology", "any", "any, same_leaf or same_pod")
	flags.StringVar(&f.start, "start", "", "start, RFC 3339 (default: as soon as possible)")
	flags.StringVar(&f.end, "end", "", "end, RFC 3339; or give --duration")
	flags.Var(&f.duration, "duration", "how long, e.g. 90m, 48h or 30d")
	_ = command.MarkFlagRequired("type")
	command.MarkFlagsOneRequired("duration", "end")
	command.MarkFlagsMutuallyExclusive("duration", "end")
}

// window returns the window, or nil for on-demand.
func (f *wish) window() (*client.Window, error) {
	if f.start == "" && f.end != "" {
		return nil, usagef("--end needs --start; to begin at once, say how long with --duration")
	}
	if f.start == "" {
		return nil, nil //nolint:nilnil // no window is what on-demand means
	}
	start, err := parseInstant("start", f.start)
	if err != nil {
		return nil, err
	}
	if f.end == "" {
		return &client.Window{Start: start, End: start.Add(time.Duration(f.duration))}, nil
	}
	end, err := parseInstant("end", f.end)
	if err != nil {
		return nil, err
	}
	if !end.After(start) {
		return nil, usagef("--end must be later than --start")
	}
	return &client.Window{Start: start, End: end}, nil
}

func (f *wish) seconds() *int64 {
	if f.duration == 0 || f.start != "" {
		return nil
	}
	s := int64(time.Duration(f.duration) / time.Second)
	return &s
}

func searchCommand(o *options) *cobra.Command {
	var f wish
	command := &cobra.Command{
		Use:   "search",
		Short: "Find capacity for a window",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			wanted, err := f.window()
			if err != nil {
				return err
			}
			topology := client.Topology(f.topology)
			answer, err := c.SearchAvailabilityWithResponse(ctx, client.AvailabilitySearch{
				InstanceType: f.instanceType, Instances: f.instances, Site: optional(f.site), Topology: &topology, Window: wanted, DurationSeconds: f.seconds(),
			})
			if err != nil {
				return unreachable(c.server, err)
			}
			options, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			why := ""
			if len(options.Items) == 0 && !p.json {
				if why, err = f.shortage(ctx, c); err != nil {
					return err
				}
			}
			return p.show(options, func(w io.Writer) { describeOptions(w, options, why) })
		}),
	}
	f.bind(command)
	return command
}

// shortage says why a search found nothing, as far as the market's list tells.
func (f *wish) shortage(ctx context.Context, c *connection) (string, error) {
	answer, err := c.ListInstanceTypesWithResponse(ctx)
	if err != nil {
		return "", unreachable(c.server, err)
	}
	types, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return "", err
	}
	most := 0
	for _, t := range types.Items {
		for _, offer := range t.Offers {
			if t.Name == f.instanceType && (f.site == "" || f.site == offer.Site) {
				most = max(most, offer.TotalInstances)
			}
		}
	}
	switch {
	case most == 0:
		return "No machine is set up for " + f.instanceType + " at the moment, so that there is none at any time. See: leasehold market list", nil
	case f.instances > most:
		return fmt.Sprintf("There are only %d × %s in all. Ask for fewer.", most, f.instanceType), nil
	default:
		return "Nothing that fits is free in that window. Try another time, a smaller number, or --topology any.", nil
	}
}

func describeOptions(w io.Writer, options *client.OptionList, why string) {
	if len(options.Items) == 0 {
		row(w, why)
		return
	}
	row(w, "SITE", "WINDOW", "NODES", "LEAVES", "PRICE", "TOTAL (WORST CASE)")
	for _, option := range options.Items {
		row(w, option.Site, window(option.Window), option.Nodes, option.LeavesSpanned, rate(option.Rate), amount(option.Total))
	}
}

func quoteCommand(o *options) *cobra.Command {
	var f wish
	var policy string
	command := &cobra.Command{
		Use:   "quote",
		Short: "Get a firm offer",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			quote, err := createQuote(ctx, c, f, policy)
			if err != nil {
				return err
			}
			return p.show(quote, func(w io.Writer) { describeQuote(w, quote) })
		}),
	}
	f.bind(command)
	command.Flags().StringVar(&policy, "on-failure", "replace", "when a node fails on the way to the lease it is replaced; what is agreed for while it runs: replace, ask or keep (recorded; in this release an outage is shown and not billed, and no running node is replaced)")
	return command
}

func createQuote(ctx context.Context, c *connection, f wish, policy string) (*client.Quote, error) {
	wanted, err := f.window()
	if err != nil {
		return nil, err
	}
	topology, failure := client.Topology(f.topology), client.FailurePolicy(policy)
	answer, err := c.CreateQuoteWithResponse(ctx, &client.CreateQuoteParams{IdempotencyKey: fresh()}, client.QuoteCreate{
		InstanceType: f.instanceType, Instances: f.instances, Site: optional(f.site), Topology: &topology, Window: wanted,
		DurationSeconds: f.seconds(), FailurePolicy: &failure,
	})
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	return take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}

func describeQuote(w io.Writer, q *client.Quote) {
	row(w, "Quote", q.ID)
	row(w, "What", itoa(q.Instances)+" × "+q.InstanceType+" at "+q.Site)
	row(w, "When", window(q.Window)+", "+string(q.Class))
	row(w, "Price", rate(q.Rate))
	row(w, "Subtotal", amount(q.Subtotal))
	row(w, "Tax", amount(q.Tax))
	row(w, "Total", amount(q.Total)+" at worst; this is held at booking")
	for _, step := range q.RefundSchedule {
		row(w, "Refund", percent(step.RefundBps)+" when cancelled "+noticeOf(step.NoticeSeconds))
	}
	row(w, "", percent(q.EarlyRefundBps)+" of the unused time when ended early")
	row(w, "Failure", q.FailurePolicy)
	row(w, "Expires", instant(q.ExpiresAt))
	row(w, "Book it", "leasehold lease create "+q.ID)
}

func noticeOf(seconds int64) string {
	if seconds == 0 {
		return "before the start"
	}
	return short(time.Duration(seconds)*time.Second) + " or more before the start"
}
