package cli

import (
	"context"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/money"
)

func balanceCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "balance",
		Short: "Show the balance and what is held",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			answer, err := c.GetBalanceWithResponse(ctx)
			if err != nil {
				return unreachable(c.server, err)
			}
			balance, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(balance, func(w io.Writer) {
				row(w, "Cash", amount(balance.Cash))
				row(w, "Held for leases", amount(balance.Held))
				row(w, "Credit limit", amount(balance.CreditLimit))
				row(w, "Available", amount(balance.Available))
				if balance.Gateway == client.BalanceGatewayTest {
					row(w, "Payments", "test gateway: no real money moves")
				}
			})
		}),
	}
}

func topUpCommand(o *options) *cobra.Command {
	var method string
	command := &cobra.Command{
		Use:     "top-up AMOUNT CURRENCY",
		Short:   "Pay money in, e.g. top-up 100.00 USD",
		Example: "  leasehold top-up 100.00 USD",
		Args:    cobra.ExactArgs(2),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			minor, err := parseAmount(args[0], money.Currency(strings.ToUpper(args[1])))
			if err != nil {
				return err
			}
			answer, err := c.CreateTopUpWithResponse(ctx, &client.CreateTopUpParams{IdempotencyKey: fresh()},
				client.TopUpCreate{Amount: client.Money{Amount: minor.Minor, Currency: string(minor.Currency)}, PaymentMethod: optional(method)})
			if err != nil {
				return unreachable(c.server, err)
			}
			topUp, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			if err := p.show(topUp, func(w io.Writer) { describeTopUp(w, topUp) }); err != nil {
				return err
			}
			if topUp.State == client.TopUpStateFailed {
				return fmt.Errorf("nothing was paid in: %s", or(topUp.Failure, "the payment failed"))
			}
			return nil
		}),
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if regexp.MustCompile(`^unknown shorthand flag: '[\d.]'`).MatchString(err.Error()) { // an amount below zero looks like a flag
			err = errNotPositive()
		}
		return &Usage{Detail: err.Error(), Command: cmd.CommandPath()}
	})
	command.Flags().StringVar(&method, "payment-method", "", "a Stripe payment method, e.g. pm_card_visa with the test gateway")
	return command
}

func errNotPositive() error {
	return usagef("an amount to pay in is above zero, e.g.: leasehold top-up 100.00 USD")
}

func describeTopUp(w io.Writer, t *client.TopUp) {
	row(w, "Top-up", t.ID)
	row(w, "Amount", amount(t.Amount))
	row(w, "State", strings.ReplaceAll(string(t.State), "_", " "))
	if t.Failure != nil {
		row(w, "Why", *t.Failure)
	}
	if t.ActionURL != nil {
		row(w, "Go on at", *t.ActionURL)
	}
}

// parseAmount reads a positive decimal amount exactly, e.g. "100.50".
func parseAmount(s string, currency money.Currency) (money.Amount, error) {
	exponent, err := currency.Exponent()
	if err != nil {
		return money.Amount{}, usagef("currency %q is not known", currency)
	}
	value, ok := new(big.Rat).SetString(s)
	if !ok || strings.ContainsAny(s, "/eE") {
		return money.Amount{}, usagef("%q is not an amount, which looks like 100.00", s)
	}
	if value.Sign() <= 0 {
		return money.Amount{}, errNotPositive()
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exponent)), nil)
	value.Mul(value, new(big.Rat).SetInt(scale))
	if !value.IsInt() || !value.Num().IsInt64() {
		return money.Amount{}, usagef("%q has more than %d decimals, or is too large", s, exponent)
	}
	return money.Of(value.Num().Int64(), currency), nil
}

func invoiceCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "invoice", Aliases: []string{"invoices"}, Short: "See invoices"}
	command.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List invoices and drafts",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			invoices := client.InvoiceList{Items: []client.Invoice{}}
			err := pages(func(cursor *string) (*client.InvoiceList, *httpResponse, error) {
				answer, err := c.ListInvoicesWithResponse(ctx, &client.ListInvoicesParams{Cursor: cursor})
				if err != nil {
					return nil, nil, unreachable(c.server, err)
				}
				page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
				return page, answer.HTTPResponse, err
			}, func(page *client.InvoiceList) { invoices.Items = append(invoices.Items, page.Items...) })
			if err != nil {
				return err
			}
			return p.show(invoices, func(w io.Writer) {
				if len(invoices.Items) == 0 {
					row(w, "No invoices yet: each lease gets one when it is over.")
					return
				}
				row(w, "INVOICE", "NUMBER", "STATE", "PERIOD", "TOTAL", "PAYABLE")
				for _, i := range invoices.Items {
					row(w, i.ID, or(i.Number, "–"), i.State, window(i.Period), amount(i.Total), amount(i.Payable))
				}
			})
		}),
	}, &cobra.Command{
		Use:   "show INVOICE",
		Short: "Show an invoice with its lines",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.GetInvoiceWithResponse(ctx, args[0])
			if err != nil {
				return unreachable(c.server, err)
			}
			invoice, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(invoice, func(w io.Writer) { describeInvoice(w, invoice) })
		}),
	}, invoicePDFCommand(o), invoiceExportCommand(o))
	return command
}

// seconds writes a quantity of milliseconds, which may be larger than any integer of ours, in seconds.
func seconds(millis string) string {
	value, ok := new(big.Rat).SetString(millis)
	if !ok {
		return millis + " ms"
	}
	return value.Quo(value, big.NewRat(1000, 1)).FloatString(3)
}

func describeInvoice(w io.Writer, i *client.Invoice) {
	row(w, "Invoice", i.ID)
	row(w, "Number", or(i.Number, "– (draft)"))
	row(w, "State", i.State)
	row(w, "Period", window(i.Period))
	row(w, "")
	row(w, "LINE", "KIND", "FROM – TO", "QUANTITY (unit-s)", "AMOUNT", "TAX")
	for _, line := range i.Lines {
		row(w, fmt.Sprintf("%d.%d %s", line.Segment, line.Seq, line.Description), line.Kind, window(client.Window{Start: line.Start, End: line.End}),
			seconds(line.QuantityUnitMillis), amount(line.Amount), amount(line.Tax))
	}
	row(w, "")
	row(w, "Subtotal", amount(i.Subtotal))
	row(w, "Tax", amount(i.Tax))
	row(w, "Total", amount(i.Total))
	row(w, "Prepaid", amount(i.Prepaid))
	row(w, "Payable", amount(i.Payable))
}
