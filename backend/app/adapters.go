package app

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
	"github.com/leasehold/leasehold/backend/webhook"
)

// deliveryAgents lets delivery ask agents for work in its own words.
type deliveryAgents struct{ fleet *fleet.Service }

// Issue implements delivery.Agents.
func (d deliveryAgents) Issue(ctx context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	work := make([]fleet.Work, len(orders))
	for i, o := range orders {
		work[i] = fleet.Work{
			Node: o.Node, Allocation: o.Allocation, Kind: o.Kind, Epoch: o.Epoch, Slots: protocol.Slots{From: o.Slots.From, To: o.Slots.To},
			Spec: o.Spec, PickUpWithin: limits.PickUpWithin, DoneWithin: limits.DoneWithin,
		}
	}
	_, err := d.fleet.Issue(ctx, fleet.Step{Lease: step.Lease, Kind: step.Kind, Attempt: step.Attempt, Node: step.Node}, work)
	return err
}

// deliveryFabric lets delivery isolate leases in its own words; the two packages' words for states and verdicts are the same.
type deliveryFabric struct{ *fabric.Service }

// Status implements delivery.Fabric.
func (d deliveryFabric) Status(ctx context.Context, id ids.Lease) (delivery.Isolation, string, error) {
	status, why, err := d.Service.Status(ctx, id)
	return delivery.Isolation(status), why, err
}

// Witness implements delivery.Fabric.
func (d deliveryFabric) Witness(ctx context.Context, id ids.Lease, occasion delivery.Occasion, attempt int) error {
	return d.Service.Witness(ctx, id, fabric.Occasion(occasion), attempt)
}

// WitnessStep implements delivery.Fabric.
func (d deliveryFabric) WitnessStep(occasion delivery.Occasion) string {
	return d.Service.WitnessStep(fabric.Occasion(occasion))
}

// Attest implements delivery.Fabric.
func (d deliveryFabric) Attest(ctx context.Context, id ids.Lease, occasion delivery.Occasion) (ids.Attestation, delivery.Verdict, error) {
	attestation, verdict, err := d.Service.Attest(ctx, id, fabric.Occasion(occasion))
	return attestation, delivery.Verdict(verdict), err
}

// paymentEvents tells webhooks of payments.
type paymentEvents struct{ events webhook.Events }

// PaymentEnded implements billing.Announcer.
func (p paymentEvents) PaymentEnded(ctx context.Context, payment billing.Payment) error {
	kind := webhook.PaymentSucceeded
	if payment.State == billing.PaymentFailed {
		kind = webhook.PaymentFailed
	}
	data, err := json.Marshal(map[string]any{
		"payment_id": payment.ID.String(), "amount": payment.Amount.Minor, "currency": payment.Amount.Currency, "failure": payment.Failure,
	})
	if err != nil {
		return fmt.Errorf("encode payment: %w", err)
	}
	return p.events.Publish(ctx, webhook.Event{
		ID: ids.Make[ids.Event](), Org: payment.Org, Type: kind, Subject: payment.ID.String(), At: payment.UpdatedAt, Data: data,
	})
}

// doctorLog lets the doctor read the audit log again.
type doctorLog struct{ verifier audit.Verifier }

// Verify implements doctor.Log.
func (d doctorLog) Verify(ctx context.Context) ([]doctor.Finding, error) {
	breaches, err := d.verifier.Verify(tenant.AsPlatform(ctx))
	if err != nil {
		return nil, err
	}
	findings := make([]doctor.Finding, len(breaches))
	for i, b := range breaches {
		chain := "the platform's chain"
		if !b.Chain.IsZero() {
			chain = "the chain of " + b.Chain.String()
		}
		findings[i] = doctor.Finding{Invariant: 9, Claim: doctor.Invariants()[8], What: chain, Found: b.What}
	}
	return findings, nil
}

// doctorBills lets the doctor have bills rated again: everybody's, whoever asks.
type doctorBills struct{ bills *billing.Service }

// Audit implements doctor.Bills.
func (d doctorBills) Audit(ctx context.Context) ([]doctor.Finding, error) {
	breaches, err := d.bills.Audit(tenant.AsPlatform(ctx))
	if err != nil {
		return nil, err
	}
	findings := make([]doctor.Finding, len(breaches))
	for i, b := range breaches {
		findings[i] = doctor.Finding{Invariant: 5, Claim: b.Claim, What: b.What, Found: b.Found}
	}
	return findings, nil
}
