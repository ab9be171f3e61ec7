package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

type sweepRow struct {
	Operation operationRow `gorm:"embedded"`
	Attempt   int
}

// sweepColumns are all of an operation but what was seen, which is megabytes on a large fabric.
const sweepColumns = `o.id, o.agent_id, o.step_id, o.lease_id, o.allocation_id, o.node_id, o.fabric_id, o.kind, o.dedup_key, o.epoch, o.slots, o.spec, o.state,
	o.percent, o.phase, o.fault, o.pick_up_by, o.done_by, o.created_at, o.started_at, o.finished_at, o.absorbed_at`

func toSweep(r sweepRow) fabric.Sweep {
	return fabric.Sweep{Operation: toOperation(r.Operation), Attempt: r.Attempt}
}

func (s *Isolation) sweeps(ctx context.Context, columns, rest string, args ...any) ([]fabric.Sweep, error) {
	rows, err := scan[sweepRow](ctx, s.db, "SELECT "+columns+", s.attempt FROM operation o JOIN step s ON s.id = o.step_id WHERE "+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	return each(rows, toSweep), nil
}

// Sweeps implements fabric.Partitions.
func (s *Isolation) Sweeps(ctx context.Context, id ids.Fabric, step string, limit int) ([]fabric.Sweep, error) {
	return s.sweeps(ctx, sweepColumns, "o.fabric_id = ? AND s.fabric_id = o.fabric_id AND s.kind = ? ORDER BY o.created_at DESC, o.id DESC LIMIT ?", id, step, limit)
}

// LastPlaced implements fabric.Partitions.
func (s *Isolation) LastPlaced(ctx context.Context, id ids.Fabric) (fabric.Sweep, bool, error) {
	found, err := s.sweeps(ctx, sweepColumns, `o.fabric_id = ? AND s.fabric_id = o.fabric_id AND o.kind = 'apply_partitions' AND o.signed IS NOT NULL
		ORDER BY o.created_at DESC, o.id DESC LIMIT 1`, id)
	if err != nil || len(found) == 0 {
		return fabric.Sweep{}, false, err
	}
	return found[0], true, nil
}

// Unabsorbed implements fabric.Partitions.
func (s *Isolation) Unabsorbed(ctx context.Context, id ids.Fabric) ([]fabric.Sweep, error) {
	return s.sweeps(ctx, "o.*", "o.fabric_id = ? AND s.fabric_id = o.fabric_id AND o.absorbed_at IS NULL AND o.state NOT IN ('queued', 'running') ORDER BY o.created_at, o.id", id)
}

// LastRound implements fabric.Partitions.
func (s *Isolation) LastRound(ctx context.Context, id ids.Lease, step string) ([]fabric.Sweep, error) {
	return s.sweeps(ctx, "o.*", `s.lease_id = ? AND s.kind = ? AND s.attempt = (SELECT max(attempt) FROM step WHERE lease_id = s.lease_id AND kind = s.kind)
		ORDER BY o.created_at, o.id`, id, step)
}

// Absorbed implements fabric.Partitions.
func (s *Isolation) Absorbed(ctx context.Context, id ids.Operation, at time.Time) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec("UPDATE operation SET absorbed_at = ? WHERE id = ?", at, id).Error
	})
	if err != nil {
		return fmt.Errorf("note absorbed operation: %w", translate(err))
	}
	return nil
}

// Operation implements fabric.Partitions.
func (s *Isolation) Operation(ctx context.Context, id ids.Operation) (fleet.Operation, error) {
	rows, err := scan[operationRow](ctx, s.db, "SELECT * FROM operation WHERE id = ?", id)
	if err != nil {
		return fleet.Operation{}, fmt.Errorf("read operation: %w", err)
	}
	if len(rows) == 0 {
		return fleet.Operation{}, fault.New(fault.NotFound, "operation-not-found", "there is no such operation")
	}
	return toOperation(rows[0]), nil
}

type attestationRow struct {
	ID          ids.Attestation `gorm:"primaryKey"`
	OrgID       ids.Org
	LeaseID     ids.Lease
	PartitionID ids.Partition
	Occasion    string
	Verdict     string
	Envelope    document[protocol.Envelope]
	CreatedAt   time.Time
}

func (attestationRow) TableName() string { return "attestation" }

// InsertAttestation implements fabric.Partitions.
func (s *Isolation) InsertAttestation(ctx context.Context, a fabric.Attestation) error {
	row := attestationRow{
		ID: a.ID, OrgID: a.Org, LeaseID: a.Lease, PartitionID: a.Partition, Occasion: string(a.Occasion), Verdict: string(a.Verdict),
		Envelope: document[protocol.Envelope]{a.Envelope}, CreatedAt: a.CreatedAt,
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert attestation: %w", translate(err))
	}
	return nil
}

// Attestation implements fabric.Partitions.
func (s *Isolation) Attestation(ctx context.Context, id ids.Attestation) (protocol.Envelope, error) {
	var rows []attestationRow
	if err := conn(ctx).Where("id = ?", id).Find(&rows).Error; err != nil {
		return protocol.Envelope{}, fmt.Errorf("read attestation: %w", translate(err))
	}
	if len(rows) == 0 {
		return protocol.Envelope{}, fault.New(fault.NotFound, "attestation-not-found", "there is no such attestation")
	}
	return rows[0].Envelope.Of, nil
}
