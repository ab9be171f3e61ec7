// Package billing charges leases: it captures what metering rated from their holds, settles and invoices them, and takes payments.
// Its money moves through package ledger only.
package billing

import (
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// ChargeLine is a rated line as it is kept: whose it is, what run made it, what invoice it is on.
type ChargeLine struct {
	metering.Line
	ID        ids.Charge
	Org       ids.Org
	Project   ids.Project
	Lease     ids.Lease
	Run       ids.Rating
	Named     ids.Charge  // the line that a correction names
	Invoice   ids.Invoice // zero: not invoiced yet
	CreatedAt time.Time
}

// RatingRun is a rating as it is kept.
type RatingRun struct {
	ID        ids.Rating
	Org       ids.Org
	Lease     ids.Lease
	CreatedAt time.Time
	Version   string
	metering.Run
}

// LineFilter narrows a list of charge lines. Zero fields do not narrow.
type LineFilter struct {
	Org      ids.Org
	Lease    ids.Lease
	From, To time.Time // lines that overlap [From, To)
	After    ids.Charge
	Limit    int
}

// LeaseUsage is how a lease stands: what it was, what it was charged, what it will have cost.
type LeaseUsage struct {
	Intervals []metering.Interval
	Lines     []ChargeLine
	Charged   money.Amount // with tax
	Forecast  money.Amount // with tax, if all goes as agreed from now on
}

// InvoiceState is where an invoice is in its life.
type InvoiceState string

// The states of an invoice.
const (
	Draft InvoiceState = "draft"
	Final InvoiceState = "final"
	Void  InvoiceState = "void"
)

// Invoice is a bill. Total is Subtotal and Tax; what of it was burnt from holds is Prepaid, the rest Payable.
type Invoice struct {
	ID          ids.Invoice
	Org         ids.Org
	Number      string // drawn when it is finalized
	State       InvoiceState
	Lease       ids.Lease // set: of one closed lease
	From, To    time.Time
	Subtotal    money.Amount
	Tax         money.Amount
	Total       money.Amount
	Prepaid     money.Amount
	Payable     money.Amount
	Lines       []ChargeLine
	Snapshot    []byte // JSON, frozen when final
	Digest      string
	CreatedAt   time.Time
	FinalizedAt time.Time
}

// InvoiceFilter narrows a list of invoices.
type InvoiceFilter struct {
	Org   ids.Org
	Lease ids.Lease
	After ids.Invoice
	Limit int
}

func plain(lines []ChargeLine) []metering.Line {
	out := make([]metering.Line, len(lines))
	for i, l := range lines {
		out[i] = l.Line
	}
	return out
}

func sums(lines []ChargeLine, currency money.Currency) (money.Amount, money.Amount) {
	net, tax := money.Of(0, currency), money.Of(0, currency)
	for _, l := range lines {
		net, tax = net.Add(l.Amount), tax.Add(l.Tax)
	}
	return net, tax
}
