package httpapi

import (
	"context"
	"io"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Billing is balance, usage, invoices, payments.
type Billing struct {
	Bills    *billing.Service
	Payments *billing.Payments
	// Draw writes a statement as a PDF, with a notice on every page.
	Draw func(w io.Writer, s billing.Statement, notice string) error
}

// GetBalance says what the organization has, and whether the gateway moves real money.
func (b Billing) GetBalance(ctx context.Context, _ api.GetBalanceRequestObject) (api.GetBalanceResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	balance, err := b.Bills.Balance(ctx, actor.Org)
	if err != nil {
		return nil, err
	}
	return api.GetBalance200JSONResponse{
		Cash: newMoneyView(balance.Cash), Held: newMoneyView(balance.Held), Available: newMoneyView(balance.Available()),
		CreditLimit: newMoneyView(balance.CreditLimit), Gateway: api.BalanceGateway(b.Payments.Gateway()),
	}, nil
}

// ListLedger lists what moved on the organization's accounts.
func (b Billing) ListLedger(ctx context.Context, r api.ListLedgerRequestObject) (api.ListLedgerResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.LedgerTx](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := b.Bills.Transactions(ctx, actor.Org, page.after, page.limit+1)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(t ledger.Tx) ids.LedgerTx { return t.ID })
	if err != nil {
		return nil, err
	}
	return api.ListLedger200JSONResponse{
		Body: api.LedgerTransactionList{Items: each(items, newLedgerTransactionView)}, Headers: api.ListLedger200ResponseHeaders{Link: link},
	}, nil
}

// newLedgerTransactionView turns the signs round: in the books a customer's account is a liability, whose credits are negative; the
// customer sees more of their money as a positive amount.
func newLedgerTransactionView(t ledger.Tx) api.LedgerTransaction {
	return api.LedgerTransaction{
		ID: t.ID.String(), Kind: string(t.Kind), Memo: t.Memo, LeaseID: orNil(t.Lease.String()), At: t.At.UTC(),
		Entries: each(t.Entries, func(e ledger.Entry) api.LedgerEntry {
			return api.LedgerEntry{Account: string(e.Account.Kind), Amount: newMoneyView(e.Amount.Neg())}
		}),
	}
}

// ListUsage lists charge lines.
func (b Billing) ListUsage(ctx context.Context, r api.ListUsageRequestObject) (api.ListUsageResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.Charge](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	filter := billing.LineFilter{Org: actor.Org, From: orZero(r.Params.From), To: orZero(r.Params.To), After: page.after, Limit: page.limit + 1}
	if filter.Lease, err = optionalLease(r.Params.LeaseID); err != nil {
		return nil, err
	}
	found, err := b.Bills.Lines(ctx, filter)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(l billing.ChargeLine) ids.Charge { return l.ID })
	if err != nil {
		return nil, err
	}
	return api.ListUsage200JSONResponse{
		Body: api.ChargeLineList{Items: each(items, newChargeLineView)}, Headers: api.ListUsage200ResponseHeaders{Link: link},
	}, nil
}

func newChargeLineView(l billing.ChargeLine) api.ChargeLine {
	return api.ChargeLine{
		ID: l.ID.String(), LeaseID: l.Lease.String(), Segment: l.Segment, Seq: l.Seq, Kind: api.ChargeLineKind(l.Kind), Description: l.Description,
		Start: l.From.UTC(), End: l.To.UTC(), Unit: l.Unit, QuantityUnitMillis: l.Quantity.String(), RateMicros: l.Rate.Micros,
		Amount: newMoneyView(l.Amount), Tax: newMoneyView(l.Tax), InvoiceID: orNil(l.Invoice.String()),
	}
}

// optionalLease reads the lease that a list is narrowed to.
func optionalLease(id *string) (ids.Lease, error) {
	if id == nil {
		return ids.Lease{}, nil
	}
	return idFromPath[ids.Lease](*id)
}

// ListTopUps lists what was paid in.
func (b Billing) ListTopUps(ctx context.Context, r api.ListTopUpsRequestObject) (api.ListTopUpsResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.Payment](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := b.Payments.Payments(ctx, actor.Org, page.after, page.limit+1)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(p billing.Payment) ids.Payment { return p.ID })
	if err != nil {
		return nil, err
	}
	return api.ListTopUps200JSONResponse{
		Body: api.TopUpList{Items: each(items, newTopUpView)}, Headers: api.ListTopUps200ResponseHeaders{Link: link},
	}, nil
}

// CreateTopUp pays money in. It runs off the transaction, since it talks to the gateway; the key makes it one payment.
func (b Billing) CreateTopUp(ctx context.Context, r api.CreateTopUpRequestObject) (api.CreateTopUpResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	payment, err := b.Payments.TopUp(ctx, billing.TopUpInput{
		Org: actor.Org, Amount: money.Of(r.Body.Amount.Amount, money.Currency(r.Body.Amount.Currency)), Method: orZero(r.Body.PaymentMethod),
		Key: IdempotencyKey(ctx), By: actor.Name(),
	})
	if err != nil {
		return nil, err
	}
	return api.CreateTopUp201JSONResponse(newTopUpView(payment)), nil
}

func newTopUpView(p billing.Payment) api.TopUp {
	return api.TopUp{
		ID: p.ID.String(), Amount: newMoneyView(p.Amount), State: api.TopUpState(p.State), ActionURL: orNil(p.ActionURL), Failure: orNil(p.Failure),
		Gateway: api.TopUpGateway(p.Gateway), CreatedAt: p.CreatedAt.UTC(),
	}
}

// ListInvoices lists invoices and drafts.
func (b Billing) ListInvoices(ctx context.Context, r api.ListInvoicesRequestObject) (api.ListInvoicesResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.Invoice](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	filter := billing.InvoiceFilter{Org: actor.Org, After: page.after, Limit: page.limit + 1}
	if filter.Lease, err = optionalLease(r.Params.LeaseID); err != nil {
		return nil, err
	}
	found, err := b.Bills.Invoices(ctx, filter)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(i billing.Invoice) ids.Invoice { return i.ID })
	if err != nil {
		return nil, err
	}
	return api.ListInvoices200JSONResponse{
		Body: api.InvoiceList{Items: each(items, newInvoiceView)}, Headers: api.ListInvoices200ResponseHeaders{Link: link},
	}, nil
}

// GetInvoice reads an invoice with its lines.
func (b Billing) GetInvoice(ctx context.Context, r api.GetInvoiceRequestObject) (api.GetInvoiceResponseObject, error) {
	id, err := idFromPath[ids.Invoice](r.InvoiceID)
	if err != nil {
		return nil, err
	}
	invoice, err := b.Bills.Invoice(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetInvoice200JSONResponse(newInvoiceView(invoice)), nil
}

func newInvoiceView(i billing.Invoice) api.Invoice {
	return api.Invoice{
		ID: i.ID.String(), Number: orNil(i.Number), State: api.InvoiceState(i.State), LeaseID: orNil(i.Lease.String()), Period: newWindowView(i.From, i.To),
		Subtotal: newMoneyView(i.Subtotal), Tax: newMoneyView(i.Tax), Total: newMoneyView(i.Total), Prepaid: newMoneyView(i.Prepaid),
		Payable: newMoneyView(i.Payable), Digest: orNil(i.Digest), Lines: each(i.Lines, newChargeLineView), CreatedAt: i.CreatedAt.UTC(),
		FinalizedAt: orNil(i.FinalizedAt),
	}
}

// ReceiveStripeWebhook keeps a hint. The signature is over the body as it was sent.
func (b Billing) ReceiveStripeWebhook(ctx context.Context, r api.ReceiveStripeWebhookRequestObject) (api.ReceiveStripeWebhookResponseObject, error) {
	if err := b.Payments.Receive(ctx, rawBody(ctx), r.Params.StripeSignature); err != nil {
		return nil, err
	}
	return api.ReceiveStripeWebhook204Response{}, nil
}
