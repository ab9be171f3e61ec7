package httpapi

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
)

func newLeaseView(d lease.Details) api.Lease {
	tags := d.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	return api.Lease{
		ID: d.ID.String(), ProjectID: d.Project.String(), Name: d.Name, QuoteID: d.Quote.String(), InstanceType: d.TypeName, Site: d.SiteName,
		Fabric: orNil(d.FabricName), Class: api.LeaseClass(d.Class), Instances: d.Instances, Start: d.Start.UTC(), End: d.End.UTC(),
		State: api.LeaseState(d.State), Outcome: api.LeaseOutcome(d.Outcome), Reason: d.Reason, FailurePolicy: api.FailurePolicy(d.FailurePolicy),
		Tags: tags, WantedEnd: instantOrNil(d.WantedEnd), ActiveAt: instantOrNil(d.ActiveAt), ReleasedAt: instantOrNil(d.ReleasedAt),
		ClosedAt: instantOrNil(d.ClosedAt), LastEvent: d.LastEvent, Held: newMoneyView(d.Held), Charged: newMoneyView(d.Charged),
		InvoiceID: orNil(d.Invoice.String()), CreatedAt: d.CreatedAt.UTC(),
		Progress: api.Progress{Step: d.Progress.Step, Percent: d.Progress.Percent, Done: d.Progress.Done, Total: d.Progress.Total},
	}
}

// instantOrNil returns nil for the zero instant, which the JSON leaves out.
func instantOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	utc := at.UTC()
	return &utc
}

func newLeaseNodeView(n lease.NodeDetails) api.LeaseNode {
	view := api.LeaseNode{
		AllocationID: n.ID.String(), Ordinal: n.Ordinal, Node: n.NodeName, State: api.LeaseNodeState(n.State), Reason: n.Reason,
		Slots: api.SlotRange{From: n.Slots.From, To: n.Slots.To}, Leaf: orNil(n.Leaf),
		Gpus:     each(n.GPUs, func(g lease.GPU) api.LeaseGPU { return api.LeaseGPU{Bay: g.Bay, Model: g.Model, UUID: g.UUID} }),
		Progress: api.NodeProgress{Step: n.Work.Step, Percent: n.Work.Percent, Phase: n.Work.Phase, State: n.Work.State},
	}
	if n.Access != nil && n.State == lease.InUse {
		view.Access = newAccessView(*n.Access)
	}
	return view
}

func newAccessView(a lease.Access) *api.Access {
	return &api.Access{
		Host: a.Host, Port: a.Port, User: a.User, HostKeys: each(a.HostKeys, func(k string) string { return k }),
		Command: fmt.Sprintf("ssh -p %d %s@%s", a.Port, a.User, a.Host),
	}
}

func newLeaseEventView(e lease.Event) api.LeaseEvent {
	data := e.Data
	if data == nil {
		data = map[string]any{}
	}
	return api.LeaseEvent{Seq: e.Seq, Type: string(e.Type), At: e.At.UTC(), Actor: e.Actor, Data: data}
}

func newUsageIntervalView(i metering.Interval) api.UsageInterval {
	return api.UsageInterval{
		AllocationID: i.Allocation.String(), Class: api.UsageIntervalClass(i.Class), Start: i.From.UTC(), End: i.To.UTC(),
		Evidence: each(i.Evidence, func(e string) string { return e }),
	}
}

func newAttestationView(a lease.Attestation) api.Attestation {
	return api.Attestation{
		ID: a.ID.String(), Occasion: api.AttestationOccasion(a.Occasion), Verdict: api.AttestationVerdict(a.Verdict), CreatedAt: a.CreatedAt.UTC(),
		Envelope: newEnvelopeView(a.Envelope),
	}
}

func newWipeCertificateView(c lease.WipeCertificate) api.WipeCertificate {
	return api.WipeCertificate{
		ID: c.ID.String(), Node: c.Node, Result: api.WipeCertificateResult(c.Result), CreatedAt: c.CreatedAt.UTC(), Envelope: newEnvelopeView(c.Envelope),
	}
}

func newEnvelopeView(e protocol.Envelope) api.Envelope {
	return api.Envelope{
		PayloadType: e.PayloadType, Payload: e.Payload,
		Signatures: each(e.Signatures, func(s protocol.Signature) api.EnvelopeSignature {
			return api.EnvelopeSignature{Keyid: s.KeyID, Sig: s.Sig}
		}),
	}
}
