package httpapi

import (
	"bytes"
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/billing/focus"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// maxExport is the longest period that is exported at once: a leap year.
const maxExport = 366 * 24 * time.Hour

// testNotice stands on papers where the test gateway serves.
const testNotice = "Test gateway: no real money moved."

// GetInvoicePdf draws an invoice.
func (b Billing) GetInvoicePdf(ctx context.Context, r api.GetInvoicePdfRequestObject) (api.GetInvoicePdfResponseObject, error) {
	id, err := idFromPath[ids.Invoice](r.InvoiceID)
	if err != nil {
		return nil, err
	}
	statement, err := b.Bills.Statement(ctx, id)
	if err != nil {
		return nil, err
	}
	notice := ""
	if b.Payments.Gateway() == string(api.BalanceGatewayTest) {
		notice = testNotice
	}
	var paper bytes.Buffer
	if err := b.Draw(&paper, statement, notice); err != nil {
		return nil, err
	}
	name := statement.Number
	if name == "" {
		name = "draft-" + id.String()
	}
	return api.GetInvoicePdf200ApplicationPdfResponse{
		Body: &paper, ContentLength: int64(paper.Len()), Headers: api.GetInvoicePdf200ResponseHeaders{ContentDisposition: new(attachment(name + ".pdf"))},
	}, nil
}

// ExportFocus writes charges as FOCUS rows.
func (b Billing) ExportFocus(ctx context.Context, r api.ExportFocusRequestObject) (api.ExportFocusResponseObject, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	from, to := r.Params.From, r.Params.To
	if !from.Before(to) || to.Sub(from) > maxExport {
		return nil, fault.New(fault.Invalid, "invalid-period", "an export is of a period of at most 366 days").At("/to", "must be later than from, by at most 366 days")
	}
	statements, err := b.Bills.Statements(ctx, actor.Org, from, to)
	if err != nil {
		return nil, err
	}
	var rows bytes.Buffer
	if err := focus.Write(&rows, statements); err != nil {
		return nil, err
	}
	name := "focus-" + from.UTC().Format(time.DateOnly) + "-" + to.UTC().Format(time.DateOnly) + ".csv"
	return api.ExportFocus200TextCsvResponse{
		Body: &rows, ContentLength: int64(rows.Len()), Headers: api.ExportFocus200ResponseHeaders{ContentDisposition: new(attachment(name))},
	}, nil
}

// attachment has a browser save what is answered under the name, which is plain ASCII of ours.
func attachment(name string) string { return `attachment; filename="` + name + `"` }
