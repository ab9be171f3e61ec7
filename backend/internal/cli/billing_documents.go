package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

// saved says what was written where.
type saved struct {
	File  string `json:"file"`
	Bytes int    `json:"bytes"`
}

func invoicePDFCommand(o *options) *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:     "pdf INVOICE",
		Short:   "Save an invoice, or the draft of one, as a PDF",
		Example: "  leasehold invoice pdf inv_01k… --file march.pdf",
		Args:    cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.GetInvoicePdfWithResponse(ctx, args[0])
			if err != nil {
				return unreachable(c.server, err)
			}
			if err := done(http.StatusOK, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
				return err
			}
			return save(p, or(optional(file), args[0]+".pdf"), answer.Body)
		}),
	}
	command.Flags().StringVar(&file, "file", "", "where to save it (default INVOICE.pdf)")
	return command
}

func invoiceExportCommand(o *options) *cobra.Command {
	var month, from, to, file string
	command := &cobra.Command{
		Use:   "export",
		Short: "Save charges as FOCUS 1.2 rows (CSV) for cost tools",
		Long: "Save charges as FOCUS 1.2 rows (CSV) for cost tools: a row for each charge and its tax. The BilledCost of an invoice's rows sums to what\n" +
			"is payable on it; what was paid in advance shows in EffectiveCost. Rows without an InvoiceId are of drafts and may change.",
		Example: "  leasehold invoice export --month 2026-03 --file march.csv",
		Args:    cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			params, err := exportParams(month, from, to)
			if err != nil {
				return err
			}
			answer, err := c.ExportFocusWithResponse(ctx, params)
			if err != nil {
				return unreachable(c.server, err)
			}
			if err := done(http.StatusOK, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
				return err
			}
			name := "focus-" + params.From.Format(time.DateOnly) + "-" + params.To.Format(time.DateOnly) + ".csv"
			return save(p, or(optional(file), name), answer.Body)
		}),
	}
	flags := command.Flags()
	flags.StringVar(&month, "month", "", "a month in UTC, e.g. 2026-03")
	flags.StringVar(&from, "from", "", "from this instant on, e.g. 2026-03-01T00:00:00Z")
	flags.StringVar(&to, "to", "", "until this instant, at most 366 days later")
	flags.StringVar(&file, "file", "", "where to save it (default focus-FROM-TO.csv)")
	command.MarkFlagsMutuallyExclusive("month", "from")
	command.MarkFlagsMutuallyExclusive("month", "to")
	command.MarkFlagsRequiredTogether("from", "to")
	command.MarkFlagsOneRequired("month", "from")
	return command
}

func exportParams(month, from, to string) (*client.ExportFocusParams, error) {
	if month != "" {
		first, err := time.Parse("2006-01", month)
		if err != nil {
			return nil, usagef("--month %q is not a month, which looks like 2026-03", month)
		}
		return &client.ExportFocusParams{From: first, To: first.AddDate(0, 1, 0)}, nil
	}
	start, err := parseInstant("from", from)
	if err != nil {
		return nil, err
	}
	end, err := parseInstant("to", to)
	if err != nil {
		return nil, err
	}
	return &client.ExportFocusParams{From: start, To: end}, nil
}

// save writes a document for its owner alone, and never over another file by halves.
func save(p printer, file string, document []byte) error {
	if strings.TrimSpace(file) == "" {
		return usagef("--file names no file")
	}
	temporary := file + ".part"
	if err := os.WriteFile(temporary, document, 0o600); err != nil {
		return fmt.Errorf("save document: %w", err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return fmt.Errorf("save document: %w", err)
	}
	return p.show(saved{File: file, Bytes: len(document)}, func(w io.Writer) { row(w, "Saved", fmt.Sprintf("%s (%d bytes)", file, len(document))) })
}
