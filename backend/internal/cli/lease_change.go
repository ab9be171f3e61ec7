package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func leaseExtendCommand(o *options) *cobra.Command {
	var by span
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
			end := lease.End.Add(time.Duration(by))
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
	command.Flags().Var(&by, "by", "how much longer, e.g. 2h or 7d")
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
					row(w, "", "Nothing has been done yet.")
					row(w, "Do it", "leasehold lease end "+args[0]+" --yes")
				}
			})
		}),
	}
	command.Flags().BoolVarP(&confirmed, "yes", "y", false, "do it")
	return command
}
