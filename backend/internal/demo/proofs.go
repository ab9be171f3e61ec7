package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/internal/cli"
	"github.com/leasehold/leasehold/backend/money"
)

func (d *demo) isolation(ctx context.Context) (*client.LeaseIsolation, error) {
	answer, err := d.api.GetLeaseIsolationWithResponse(ctx, d.lease.ID)
	if err != nil {
		return nil, err
	}
	return got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
}

func (d *demo) checkIsolation(ctx context.Context) (string, error) {
	isolation, err := d.isolation(ctx)
	if err != nil {
		return "", err
	}
	if !isolation.Applies {
		return "this instance type comes without InfiniBand: nothing to isolate", nil
	}
	kid, err := d.attested(ctx, isolation, client.AttestationOccasionBeforeActive)
	if err != nil {
		return "", err
	}
	for _, port := range isolation.Ports {
		if !port.Joined {
			return "", fmt.Errorf("port %s is not in the partition", port.GUID)
		}
	}
	seen, err := d.ssh(ctx, d.nodes[0].Access, d.key, "pkeys")
	if err != nil {
		return "", fmt.Errorf("read the node's own P_Key tables: %w", err)
	}
	return fmt.Sprintf("PKey %s on %d ports, both witnesses agree, signed by %s; the node itself shows %q",
		*isolation.Pkey, len(isolation.Ports), kid, firstLine(seen)), nil
}

func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' {
			return s[:i]
		}
	}
	return s
}

// attested finds the attestation of the occasion, and verifies verdict and signature.
func (d *demo) attested(ctx context.Context, isolation *client.LeaseIsolation, occasion client.AttestationOccasion) (string, error) {
	for _, a := range isolation.Attestations {
		if a.Occasion != occasion {
			continue
		}
		if a.Verdict != client.AttestationVerdictIsolated {
			return "", fmt.Errorf("attestation %s says %s", a.ID, a.Verdict)
		}
		return d.verify(ctx, a.Envelope)
	}
	return "", fmt.Errorf("there is no attestation %s", occasion)
}

// verify checks the envelope against the platform's published keys and returns the signing key's id.
func (d *demo) verify(ctx context.Context, envelope client.Envelope) (string, error) {
	if d.attestKeys == nil {
		answer, err := d.api.GetAttestationKeysWithResponse(ctx)
		if err != nil {
			return "", err
		}
		d.attestKeys = answer.Body
	}
	keys, err := cli.PublishedKeys(d.attestKeys)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(envelope)
	if err != nil {
		return "", fmt.Errorf("encode envelope: %w", err)
	}
	var dsse protocol.Envelope
	if err := json.Unmarshal(raw, &dsse); err != nil {
		return "", fmt.Errorf("decode envelope: %w", err)
	}
	return cli.VerifyEnvelope(dsse, keys)
}

func (d *demo) checkWipe(ctx context.Context) (string, error) {
	fmt.Fprintln(d.options.Out)
	if _, err := d.follow(ctx, client.LeaseStateClosed, d.patience()); err != nil {
		return "", err
	}
	answer, err := d.api.ListWipeCertificatesWithResponse(ctx, d.lease.ID)
	if err != nil {
		return "", err
	}
	certificates, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	if len(certificates.Items) != len(d.nodes) {
		return "", fmt.Errorf("%d certificates for %d instances", len(certificates.Items), len(d.nodes))
	}
	for _, c := range certificates.Items {
		if c.Result != client.WipeCertificateResultWiped {
			return "", fmt.Errorf("node %s came out as %s", c.Node, c.Result)
		}
		if _, err := d.verify(ctx, c.Envelope); err != nil {
			return "", fmt.Errorf("certificate of %s: %w", c.Node, err)
		}
	}
	if d.lease.Outcome != client.LeaseOutcomeCompleted {
		return "", fmt.Errorf("the lease came out as %q: %s", d.lease.Outcome, d.lease.Reason)
	}
	return fmt.Sprintf("%d certificates, signatures verified; lease closed", len(certificates.Items)), nil
}

func (d *demo) checkRelease(ctx context.Context) (string, error) {
	isolation, err := d.isolation(ctx)
	if err != nil {
		return "", err
	}
	if !isolation.Applies {
		return "not applicable", nil
	}
	kid, err := d.attested(ctx, isolation, client.AttestationOccasionAfterRelease)
	if err != nil {
		return "", err
	}
	for _, port := range isolation.Ports {
		if port.Joined {
			return "", fmt.Errorf("port %s is still in the partition", port.GUID)
		}
	}
	return "no port carries the key any more, signed by " + kid, nil
}

// checkCharges recomputes the bill from the lease's own instants: units × rate × time, rounded once.
func (d *demo) checkCharges(ctx context.Context) (string, error) {
	answer, err := d.api.GetLeaseUsageWithResponse(ctx, d.lease.ID)
	if err != nil {
		return "", err
	}
	usage, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	total := int64(0)
	for _, line := range usage.Lines {
		total += line.Amount.Amount + line.Tax.Amount
		d.charged += line.Amount.Amount
	}
	wanted, err := d.expectedCost()
	if err != nil {
		return "", err
	}
	if d.charged != wanted.Minor {
		return "", fmt.Errorf("%d lines sum to %d, the lease's own log says %s", len(usage.Lines), d.charged, wanted)
	}
	if usage.Charged.Amount != total {
		return "", fmt.Errorf("lines with tax sum to %d, charged are %d", total, usage.Charged.Amount)
	}
	return fmt.Sprintf("%d lines, %s, equal to the recomputation to the cent", len(usage.Lines), wanted), nil
}

// expectedCost rates the delivered time, from the later of start and delivery to the end that the extension gave. Booking and extension
// have one rate and one tax, and are rounded together.
func (d *demo) expectedCost() (money.Amount, error) {
	from := d.lease.Start
	if d.lease.ActiveAt != nil && d.lease.ActiveAt.After(from) {
		from = *d.lease.ActiveAt
	}
	rate := money.Rate{Micros: d.quoted.Rate.Micros, Currency: money.Currency(d.quoted.Rate.Currency)}
	return rate.Cost(money.UnitMillis(d.quoted.UnitsPerInstance*int64(len(d.nodes)), d.lease.End.Sub(from)))
}

func (d *demo) checkInvoice(ctx context.Context) (string, error) {
	answer, err := d.api.ListInvoicesWithResponse(ctx, &client.ListInvoicesParams{LeaseID: &d.lease.ID})
	if err != nil {
		return "", err
	}
	invoices, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	if len(invoices.Items) != 1 {
		return "", fmt.Errorf("%d invoices for the lease", len(invoices.Items))
	}
	single, err := d.api.GetInvoiceWithResponse(ctx, invoices.Items[0].ID)
	if err != nil {
		return "", err
	}
	invoice, err := got(single.JSON200, single.HTTPResponse, single.Body, nil)
	if err != nil {
		return "", err
	}
	sum := int64(0)
	for _, line := range invoice.Lines {
		sum += line.Amount.Amount
	}
	switch {
	case sum != invoice.Subtotal.Amount || sum != d.charged:
		return "", fmt.Errorf("lines sum to %d, subtotal is %d, charged %d", sum, invoice.Subtotal.Amount, d.charged)
	case invoice.Payable.Amount != 0:
		return "", fmt.Errorf("%s is payable although it was held", amount(invoice.Payable))
	}
	return fmt.Sprintf("%s %s: total %s, prepaid %s, payable %s", invoice.State, invoice.ID, amount(invoice.Total), amount(invoice.Prepaid), amount(invoice.Payable)), nil
}

// checkBalance sums what the lease moved in the customer's books. It looks at this lease alone: others may rent at the same time.
func (d *demo) checkBalance(ctx context.Context) (string, error) {
	moved, err := d.moved(ctx)
	if err != nil {
		return "", err
	}
	if moved["held"] != 0 {
		return "", fmt.Errorf("%d minor units are still held", moved["held"])
	}
	if moved["cash"] != -d.lease.Charged.Amount {
		return "", fmt.Errorf("%d minor units are gone, charged were %d", -moved["cash"], d.lease.Charged.Amount)
	}
	balance, err := d.balance(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s left, nothing of this lease held, exactly the %s charged are gone", amount(balance.Available), amount(d.lease.Charged)), nil
}

// moved sums the ledger's entries of the lease by account.
func (d *demo) moved(ctx context.Context) (map[string]int64, error) {
	sums, limit := map[string]int64{}, 200
	var cursor *string
	for {
		answer, err := d.api.ListLedgerWithResponse(ctx, &client.ListLedgerParams{Limit: &limit, Cursor: cursor})
		if err != nil {
			return nil, err
		}
		page, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
		if err != nil {
			return nil, err
		}
		for _, tx := range page.Items {
			if tx.At.Before(d.lease.CreatedAt) {
				return sums, nil
			}
			if tx.LeaseID == nil || *tx.LeaseID != d.lease.ID {
				continue
			}
			for _, entry := range tx.Entries {
				sums[entry.Account] += entry.Amount.Amount
			}
		}
		next := client.NextCursor(answer.HTTPResponse)
		if next == "" {
			return sums, nil
		}
		cursor = &next
	}
}

func (d *demo) runDoctor(ctx context.Context) (string, error) {
	if d.options.AdminEmail == "" {
		return "left out: no admin log-in given", nil
	}
	admin, _, err := open(ctx, d.options.Server, d.options.AdminEmail, d.options.AdminPass)
	if err != nil {
		return "", err
	}
	answer, err := admin.AdminRunDoctorWithResponse(ctx)
	if err != nil {
		return "", err
	}
	report, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
	if err != nil {
		return "", err
	}
	if !report.Healthy {
		return "", errors.New(string(answer.Body))
	}
	return fmt.Sprintf("%d invariants hold", len(report.Checks)), nil
}
