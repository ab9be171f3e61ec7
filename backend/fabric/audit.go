package fabric

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/tenant"
)

// auditStep is the kind of the steps in which a fabric's agent reads every port's tables: one operation each.
const auditStep = "audit"

// auditsKept is how many audits keep all that they have read; of the others the summary stays, and the drift that they found.
const auditsKept = 3

// AuditVerdict is what an audit came to. Undecided never counts as clean.
type AuditVerdict string

// The verdicts of audits.
const (
	AuditClean     AuditVerdict = "clean"     // every port was read at both ends and holds what it should
	AuditDeviating AuditVerdict = "deviating" // some port does not
	AuditUnknown   AuditVerdict = "unknown"   // nothing was seen to be wrong, and not everything was seen
)

// Audit is one reading of all of a fabric's ports, held against the rows.
type Audit struct {
	Operation  ids.Operation
	Fabric     ids.Fabric
	AskedBy    string // "": it was its time
	AskedAt    time.Time
	EndedAt    time.Time
	Verdict    AuditVerdict
	Ports      int // that are ours or were seen
	Clean      int // read at both ends, with nothing wrong
	Deviating  int
	Unreadable int
	Strangers  int             // of no machine that we know
	Foreign    []protocol.PKey // partitions that are not ours; reported, never touched
	Detail     string          // what went wrong with the audit itself, or is wrong with the fabric as a whole
}

// AskAudit has the whole fabric read now, and drift that repairs did not help tried again. It returns the instant after which the audit
// began that answers the request.
//
// It returns a NotFound fault.
func (s *Service) AskAudit(ctx context.Context, id ids.Fabric) (time.Time, error) {
	now := s.Clock.Now()
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		if _, err := s.Partitions.SubnetForUpdate(ctx, id); err != nil {
			return err
		}
		by := "platform"
		if actor, ok := tenant.ActorFrom(ctx); ok && actor.Name() != "" {
			by = actor.Name()
		}
		open, err := s.Partitions.OpenDrift(ctx, id)
		if err != nil {
			return err
		}
		var again []Drift
		for _, d := range open {
			if !d.GaveUpAt.IsZero() {
				d.GaveUpAt, d.TriedAt, d.Attempts = time.Time{}, time.Time{}, 0
				again = append(again, d)
			}
		}
		if err := s.Partitions.PutDrift(ctx, again); err != nil {
			return err
		}
		if err := s.Partitions.DueAudit(ctx, id, now, by); err != nil {
			return err
		}
		if err := s.Audit.Record(ctx, "fabric.audit_asked", id.String(), nil, nil); err != nil {
			return err
		}
		return s.Outbox.Put(ctx, outbox.FabricNudge, id.String(), nil, now)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("ask for audit: %w", err)
	}
	return now, nil
}

// Audits lists the fabric's audits, latest first, limit at most.
//
// It returns a NotFound fault.
func (s *Service) Audits(ctx context.Context, id ids.Fabric, limit int) ([]Audit, error) {
	var found []Audit
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		if _, err := s.Partitions.Subnet(ctx, id); err != nil {
			return err
		}
		var err error
		found, err = s.Partitions.Audits(ctx, id, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list audits: %w", err)
	}
	return found, nil
}

// maxReserved bounds the reserved keys of a fabric, as agents do.
const maxReserved = 256

// Reserve keeps keys within the fabric's managed range from leases: they are somebody else's, reported where they are seen and never
// touched. It replaces the list.
//
// It returns a NotFound fault, an Invalid fault, code "reserved-keys", and a Conflict fault, code "pkey-in-use", for one that a lease has.
func (s *Service) Reserve(ctx context.Context, id ids.Fabric, keys []protocol.PKey) error {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) > maxReserved {
		return fault.New(fault.Invalid, "reserved-keys", "at most %d keys can be reserved", maxReserved)
	}
	for _, key := range keys {
		if key < protocol.FirstPartitionID || key > protocol.LastPartitionID {
			return fault.New(fault.Invalid, "reserved-keys", "%s is not a partition key without its membership bit", key)
		}
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil || slices.Equal(subnet.Reserved, keys) {
			return err
		}
		live, err := s.Partitions.Live(ctx, id)
		if err != nil {
			return err
		}
		for _, p := range live {
			if slices.Contains(keys, p.PKey) {
				return fault.New(fault.Conflict, "pkey-in-use", "a lease's partition has %s, or had it lately", p.PKey)
			}
		}
		if err := s.Partitions.Reserve(ctx, id, keys); err != nil {
			return err
		}
		if err := s.Audit.Record(ctx, "fabric.pkeys_reserved", id.String(), map[string]any{"pkeys": subnet.Reserved}, map[string]any{"pkeys": keys}); err != nil {
			return err
		}
		return s.changed(ctx, id)
	})
	if err != nil {
		return fmt.Errorf("reserve keys: %w", err)
	}
	return nil
}

// Range makes the keys from low to high ours on the fabric: leases get them, and what stands in the manager's configuration under such a key
// and is not a lease's is removed. Everything else is foreign. A site that has partitions of its own sets it before its first lease.
//
// It returns a NotFound fault, an Invalid fault, code "managed-range", and a Conflict fault, code "pkey-in-use", when a lease has a key outside.
func (s *Service) Range(ctx context.Context, id ids.Fabric, low, high protocol.PKey) error {
	if low < protocol.FirstPartitionID || high > protocol.LastPartitionID || low > high {
		return fault.New(fault.Invalid, "managed-range", "%s to %s is not a range within %s to %s", low, high, protocol.FirstPartitionID, protocol.LastPartitionID)
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil || subnet.Low == low && subnet.High == high {
			return err
		}
		live, err := s.Partitions.Live(ctx, id)
		if err != nil {
			return err
		}
		for _, p := range live {
			if p.PKey < low || p.PKey > high {
				return fault.New(fault.Conflict, "pkey-in-use", "a lease's partition has %s, or had it lately", p.PKey)
			}
		}
		if err := s.Partitions.Range(ctx, id, low, high); err != nil {
			return err
		}
		before := map[string]any{"low": subnet.Low, "high": subnet.High}
		if err := s.Audit.Record(ctx, "fabric.range_set", id.String(), before, map[string]any{"low": low, "high": high}); err != nil {
			return err
		}
		return s.changed(ctx, id)
	})
	if err != nil {
		return fmt.Errorf("set managed range: %w", err)
	}
	return nil
}

// maxManagers is more than any fabric has.
const maxManagers = 16

// Manage says on which ports the fabric's managers run, standbys included: the one that rules is a full member of the default partition, which
// any other port may never be. It replaces the list.
//
// It returns a NotFound fault, an Invalid fault, code "manager-ports", and a Conflict fault, code "port-for-rent", for a port of a machine
// that is sold.
func (s *Service) Manage(ctx context.Context, id ids.Fabric, ports []protocol.GUID) error {
	ports = slices.Compact(slices.Sorted(slices.Values(ports)))
	if len(ports) > maxManagers || slices.Contains(ports, 0) {
		return fault.New(fault.Invalid, "manager-ports", "at most %d ports, each by its GUID", maxManagers)
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil || slices.Equal(subnet.Managers, ports) {
			return err
		}
		known, err := s.Partitions.KnownPorts(ctx, id)
		if err != nil {
			return err
		}
		for _, port := range ports {
			if slices.Contains(known, port) {
				return fault.New(fault.Conflict, "port-for-rent", "%s is a port of a machine that tenants get", port)
			}
		}
		if err := s.Partitions.Manage(ctx, id, ports); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "fabric.managers_named", id.String(), map[string]any{"ports": subnet.Managers}, map[string]any{"ports": ports})
	})
	if err != nil {
		return fmt.Errorf("name managers: %w", err)
	}
	return nil
}

// suspicion is the pause between audits that machines' findings bring about.
const suspicion = 15 * time.Second

// auditDue reports whether an audit is due, by its time, or since a machine has found its ports not clear after the last one began; and
// whether it is so late that changes wait for it.
func (s *Service) auditDue(subnet Subnet, audits []Sweep, suspected, now time.Time) (due, late bool) {
	var last time.Time
	if len(audits) > 0 {
		last = audits[0].CreatedAt
	}
	switch {
	case suspected.After(last) && !now.Before(last.Add(suspicion)):
		return true, true
	case subnet.AuditDueAt.IsZero():
		return !subnet.ObservedAt.IsZero(), false
	case now.Before(subnet.AuditDueAt):
		return false, false
	default:
		return true, now.After(subnet.AuditDueAt.Add(s.Policy.AuditEvery))
	}
}

// orderAudit asks the fabric's agent to read every port.
func (s *Service) orderAudit(ctx context.Context, subnet Subnet, now time.Time) error {
	last, err := s.Partitions.Sweeps(ctx, subnet.ID, auditStep, 1)
	if err != nil {
		return err
	}
	attempt := 1
	if len(last) > 0 {
		attempt = last[0].Attempt + 1
	}
	work := fleet.Work{
		Fabric: subnet.ID, Kind: protocol.ObserveFabric, Epoch: subnet.Epoch, Spec: protocol.ObserveFabricSpec{Nonce: rand.Text(), Ports: []protocol.GUID{}},
		PickUpWithin: s.Policy.PickUpWithin, DoneWithin: s.Policy.PickUpWithin + s.Policy.SweepWithin,
	}
	if _, err := s.Work.Issue(ctx, fleet.Step{Fabric: subnet.ID, Kind: auditStep, Attempt: attempt}, []fleet.Work{work}); err != nil {
		return err
	}
	// Who asked stays noted until the audit ends.
	return s.Partitions.DueAudit(ctx, subnet.ID, now.Add(s.Policy.AuditEvery), subnet.AuditAskedBy)
}

// conclude writes an audit's summary.
func (s *Service) conclude(ctx context.Context, subnet Subnet, sweep Sweep, v sight, c comparison, known map[protocol.GUID]bool) error {
	a := Audit{
		Operation: sweep.ID, Fabric: subnet.ID, AskedBy: subnet.AuditAskedBy, AskedAt: sweep.CreatedAt, EndedAt: v.at, Verdict: AuditUnknown,
		Clean: c.clean, Detail: v.inFull, Foreign: []protocol.PKey{},
	}
	bad, dark, strange, ports := map[protocol.GUID]bool{}, map[protocol.GUID]bool{}, map[protocol.GUID]bool{}, map[protocol.GUID]bool{}
	for guid := range known {
		ports[guid] = true
	}
	for guid := range v.links {
		ports[guid] = true
	}
	for _, d := range c.deviations {
		switch {
		case d.Kind == Unreadable:
			dark[d.Port] = true
		case d.Kind == UnknownPort:
			strange[d.Port] = true
		case d.Port != 0:
			bad[d.Port] = true
		default:
			a.Detail = firstOf(a.Detail, d.What)
		}
	}
	for _, keys := range c.foreign {
		a.Foreign = append(a.Foreign, keys...)
	}
	slices.Sort(a.Foreign)
	a.Foreign = slices.Compact(a.Foreign)
	a.Ports, a.Deviating, a.Unreadable, a.Strangers = len(ports), len(bad), len(dark), len(strange)
	switch {
	case v.trouble != "":
	case len(bad) > 0 || len(strange) > 0 || a.Detail != "":
		a.Verdict = AuditDeviating
	case len(dark) == 0 && len(ports) > 0:
		a.Verdict = AuditClean
	}
	if err := s.Partitions.InsertAudit(ctx, a); err != nil {
		return err
	}
	if err := s.Partitions.ForgetAudits(ctx, subnet.ID, auditsKept); err != nil {
		return err
	}
	if subnet.AuditAskedBy == "" || sweep.CreatedAt.Before(subnet.AuditDueAt.Add(-s.Policy.AuditEvery)) {
		return nil // somebody has asked anew since it began
	}
	return s.Partitions.DueAudit(ctx, subnet.ID, subnet.AuditDueAt, "")
}

// wholeFabric reports whether a sweep was to look at every port.
func wholeFabric(sweep Sweep) bool {
	var spec protocol.ObserveFabricSpec
	return sweep.Kind == protocol.ObserveFabric && json.Unmarshal(sweep.Spec, &spec) == nil && len(spec.Ports) == 0
}

// Dismiss ends what is known to be wrong with a port (0: with the fabric itself), on an admin's word: it was unplugged, say, and cannot be
// read any more. Whatever is seen to be wrong still begins anew with the next audit.
//
// It returns a NotFound fault, code "drift-not-found" when nothing is wrong with it.
func (s *Service) Dismiss(ctx context.Context, id ids.Fabric, port protocol.GUID, reason string) error {
	now := s.Clock.Now()
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil {
			return err
		}
		open, err := s.Partitions.OpenDrift(ctx, id)
		if err != nil {
			return err
		}
		var dismissed []Drift
		what := []string{}
		for _, d := range open {
			if d.Port == port {
				d.EndedAt, d.Repair = now, "dismissed: "+reason
				dismissed, what = append(dismissed, d), append(what, d.What)
			}
		}
		if len(dismissed) == 0 {
			return fault.New(fault.NotFound, "drift-not-found", "nothing is known to be wrong with that port")
		}
		if err := s.Partitions.PutDrift(ctx, dismissed); err != nil {
			return err
		}
		after := map[string]any{"port": port, "reason": reason}
		if err := s.Audit.Record(ctx, "fabric.drift_dismissed", id.String(), map[string]any{"port": port, "what": what}, after); err != nil {
			return err
		}
		return s.released(ctx, subnet, open, dismissed, nil, now)
	})
	if err != nil {
		return fmt.Errorf("dismiss drift: %w", err)
	}
	return nil
}
