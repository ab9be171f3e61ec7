package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// PayloadWipeCertificate is the type of what the platform signs about one allocation's wipe.
const PayloadWipeCertificate = "application/vnd.leasehold.wipe-certificate.v1+json"

// WipeStatement is what a wipe certificate says. Evidence is the agent's own signed word, unchanged.
type WipeStatement struct {
	Certificate ids.Wipe            `json:"certificate"`
	Lease       ids.Lease           `json:"lease"`
	Allocation  ids.Allocation      `json:"allocation"`
	Node        ids.Node            `json:"node"`
	Slots       protocol.Slots      `json:"slots"`
	Epoch       int64               `json:"epoch"`
	Result      protocol.WipeStatus `json:"result"`
	Detail      string              `json:"detail,omitempty"`
	Evidence    *protocol.Envelope  `json:"evidence"`
	IssuedAt    string              `json:"issued_at"` // RFC 3339, the control plane's clock
}

// Wipe has the nodes erased. A node whose evidence shows every device wiped gets its slots back on the market; any other is
// quarantined. Both get a certificate that says so.
func (s *Service) Wipe(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.releasing(ctx, id, "wipe", func(ctx context.Context, t *turn) (Progress, error) {
		return t.wipe(ctx, t.wipeTask("wipe"))
	})
}

func (t *turn) wipe(ctx context.Context, k task) (Progress, error) {
	instances := t.in(lease.Cleaning)
	found, progress, err := t.undo(ctx, k, instances)
	if err != nil {
		return progress, err
	}
	for _, i := range instances {
		if o, ok := found.done[i.ID]; ok {
			if err := t.conclude(ctx, i, o); err != nil {
				return Progress{}, err
			}
		}
	}
	for _, l := range found.lost {
		if err := t.certify(ctx, l.Instance, l.op, protocol.WipeFailed, l.op.trouble()); err != nil {
			return Progress{}, err
		}
	}
	return progress, nil
}

func (t *turn) wipeTask(name string) task {
	return task{
		name: name, kind: protocol.Wipe, within: t.Policy.WipeWithin, undo: true,
		spec: func(context.Context, Instance) (any, error) {
			return protocol.WipeSpec{LeaseID: t.lease.ID.String(), Nonce: ids.Make[ids.Wipe]().String()}, nil
		},
	}
}

// conclude certifies a wipe that the agent reports as done, and gives the slots back only if its evidence shows that it was.
func (t *turn) conclude(ctx context.Context, i Instance, o Operation) error {
	result, detail := judgeWipe(i, o)
	if err := t.certify(ctx, i, o, result, detail); err != nil {
		return err
	}
	if result != protocol.Wiped {
		return t.quarantine(ctx, fmt.Sprintf("its wipe is %s: %s", result, detail), i)
	}
	return t.free(ctx, i)
}

// judgeWipe says what the evidence amounts to. It must answer this very order (nonce, node, slots), name devices, and show each of
// them wiped with clean samples.
func judgeWipe(i Instance, o Operation) (protocol.WipeStatus, string) {
	var asked protocol.WipeSpec
	var evidence protocol.WipeEvidence
	if json.Unmarshal(o.Spec, &asked) != nil || json.Unmarshal(o.Evidence, &evidence) != nil {
		return protocol.WipeFailed, "the evidence cannot be read"
	}
	if evidence.Nonce != asked.Nonce || evidence.LeaseID != asked.LeaseID || evidence.NodeID != i.Node.String() {
		return protocol.WipeFailed, "the evidence is about something else"
	}
	if evidence.Slots.From > i.Slots.From || evidence.Slots.To < i.Slots.To {
		return protocol.WipeFailed, "the evidence does not cover the slots"
	}
	if len(evidence.Devices) == 0 {
		return protocol.WipeFailed, "the evidence names no device"
	}
	worst, detail := protocol.Wiped, ""
	for _, d := range evidence.Devices {
		switch {
		case d.Status == protocol.WipeUnsupported && worst == protocol.Wiped:
			worst, detail = protocol.WipeUnsupported, deviceDetail(d)
		case d.Status != protocol.Wiped && d.Status != protocol.WipeUnsupported, d.ReadBackDirty > 0:
			worst, detail = protocol.WipeFailed, deviceDetail(d)
		}
	}
	return worst, detail
}

func deviceDetail(d protocol.DeviceWipe) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Kind, d.Identity, d.Detail))
}

// certify signs and keeps what was found. The agent's evidence is in it as it came.
func (t *turn) certify(ctx context.Context, i Instance, o Operation, result protocol.WipeStatus, detail string) error {
	id := ids.Make[ids.Wipe]()
	statement := WipeStatement{
		Certificate: id, Lease: t.lease.ID, Allocation: i.ID, Node: i.Node, Slots: protocol.Slots(i.Slots), Epoch: i.Epoch,
		Result: result, Detail: detail, Evidence: o.Signed, IssuedAt: t.now.Format("2006-01-02T15:04:05.000000Z07:00"),
	}
	payload, err := json.Marshal(statement)
	if err != nil {
		return fmt.Errorf("encode certificate: %w", err)
	}
	envelope, err := t.Signer.Sign(ctx, PayloadWipeCertificate, payload)
	if err != nil {
		return fmt.Errorf("sign certificate: %w", err)
	}
	c := Certificate{
		ID: id, Org: t.lease.Org, Lease: t.lease.ID, Allocation: i.ID, Node: i.Node, Result: result, Envelope: envelope, CreatedAt: t.now,
	}
	if err := t.Work.InsertCertificate(ctx, c); err != nil {
		return err
	}
	if result != protocol.Wiped {
		return nil
	}
	data := about(i)
	data["certificate"] = id.String()
	return t.record(ctx, lease.EventNodeWiped, data)
}
