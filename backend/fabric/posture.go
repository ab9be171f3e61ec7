package fabric

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// postureDefaultLimited is the item on which all isolation rests: hosts are limited members of the default partition.
const postureDefaultLimited = "default_membership_limited"

// Bars reports whether an item of posture keeps new leases off a fabric: when it is false, and where isolation itself rests on it also
// when it is unknown. Other items that are unknown are reported; else no fabric of a manager that does not tell could ever be sold.
func Bars(check protocol.PostureCheck) bool {
	return check.Verdict == protocol.False || check.Item == postureDefaultLimited && check.Verdict != protocol.True
}

// barred says why no new lease may come to the fabric; "" when one may.
func (s Subnet) barred() string {
	if s.Override != "" {
		return ""
	}
	var failed []string
	for _, check := range s.Posture {
		switch {
		case !Bars(check):
		case check.Verdict == protocol.False:
			failed = append(failed, check.Item+" failed")
		default:
			failed = append(failed, check.Item+" is unknown")
		}
	}
	if len(failed) == 0 {
		return ""
	}
	return "the fabric is not secure enough for tenants: " + list(failed)
}

// posted keeps the posture that a sight shows: it is fresher than the last inventory.
func (s *Service) posted(ctx context.Context, subnet *Subnet, v sight) error {
	if len(v.posture) == 0 || slices.Equal(subnet.Posture, v.posture) {
		return nil
	}
	subnet.Posture = v.posture
	return s.Partitions.NotePosture(ctx, subnet.ID, v.posture)
}

// Override lets a fabric's posture pass, for a lab; the reason is audited. "" ends it.
//
// It returns a NotFound fault.
func (s *Service) Override(ctx context.Context, id ids.Fabric, reason string) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil || subnet.Override == reason {
			return err
		}
		if err := s.Partitions.Override(ctx, id, reason); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "fabric.posture_overridden", id.String(), map[string]any{"reason": subnet.Override}, map[string]any{"reason": reason})
	})
	if err != nil {
		return fmt.Errorf("override posture: %w", err)
	}
	return nil
}

// Outlook is how a fabric stands as a whole.
type Outlook struct {
	Override   string        // why its posture is let pass; "": it is not
	Barred     string        // why no new lease is placed there; "": one may be
	Open       string        // why no lease is handed over there; "": one may be
	Low, High  protocol.PKey // the keys that are ours, less the reserved ones
	Reserved   []protocol.PKey
	Managers   []protocol.GUID // ports of its managers' hosts
	AuditDueAt time.Time       // zero: it was never audited
}

// Outlook says how the fabric stands.
//
// It returns a NotFound fault.
func (s *Service) Outlook(ctx context.Context, id ids.Fabric) (Outlook, error) {
	var o Outlook
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.Subnet(ctx, id)
		if err != nil {
			return err
		}
		drift, err := s.Partitions.OpenDrift(ctx, id)
		if err != nil {
			return err
		}
		o = Outlook{
			Override: subnet.Override, Barred: subnet.barred(), Open: opennessInFull(drift), Low: subnet.Low, High: subnet.High, Reserved: nonNil(subnet.Reserved),
			Managers: nonNil(subnet.Managers), AuditDueAt: subnet.AuditDueAt,
		}
		return nil
	})
	if err != nil {
		return Outlook{}, fmt.Errorf("look at fabric: %w", err)
	}
	return o, nil
}
