package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

type stepRow struct {
	ID         ids.Step `gorm:"primaryKey"`
	LeaseID    ids.Lease
	FabricID   ids.Fabric
	NodeID     ids.Node
	Kind       string
	Attempt    int
	Remaining  int
	Failed     int
	CreatedAt  time.Time
	FinishedAt *time.Time
}

func (stepRow) TableName() string { return "step" }

type operationRow struct {
	ID           ids.Operation `gorm:"primaryKey"`
	AgentID      ids.Agent
	StepID       ids.Step
	LeaseID      ids.Lease
	AllocationID ids.Allocation
	NodeID       ids.Node
	FabricID     ids.Fabric
	Kind         string
	DedupKey     string
	Epoch        int64
	Slots        *slotRange
	Spec         document[json.RawMessage]
	State        string
	Percent      int
	Phase        string
	Fault        *document[protocol.Fault]
	Evidence     *document[json.RawMessage]
	Signed       *document[protocol.Envelope]
	PickUpBy     time.Time
	DoneBy       time.Time
	CreatedAt    time.Time
	StartedAt    *time.Time
	FinishedAt   *time.Time
	AbsorbedAt   *time.Time
}

func (operationRow) TableName() string { return "operation" }

func newOperationRow(o fleet.Operation, key string) operationRow {
	row := operationRow{
		ID: o.ID, AgentID: o.Agent, StepID: o.Step, LeaseID: o.Lease, AllocationID: o.Allocation, NodeID: o.Node, FabricID: o.Fabric, Kind: string(o.Kind),
		DedupKey: key, Epoch: o.Epoch, Spec: document[json.RawMessage]{o.Spec}, State: string(o.State), Percent: o.Percent, Phase: o.Phase,
		Fault: optional(o.Fault), Signed: optional(o.Signed), PickUpBy: o.PickUpBy, DoneBy: o.DoneBy, CreatedAt: o.CreatedAt,
		StartedAt: nullable(o.StartedAt), FinishedAt: nullable(o.FinishedAt),
	}
	if o.Slots.To > o.Slots.From { // an empty range has no bounds to read back
		slots := slotRange(lease.Slots{From: o.Slots.From, To: o.Slots.To})
		row.Slots = &slots
	}
	if o.Evidence != nil {
		row.Evidence = &document[json.RawMessage]{o.Evidence}
	}
	return row
}

func toOperation(r operationRow) fleet.Operation {
	o := fleet.Operation{
		ID: r.ID, Agent: r.AgentID, Step: r.StepID, Lease: r.LeaseID, Allocation: r.AllocationID, Node: r.NodeID, Fabric: r.FabricID,
		Kind: protocol.OperationKind(r.Kind), Epoch: r.Epoch, Spec: r.Spec.Of, State: fleet.State(r.State), Percent: r.Percent, Phase: r.Phase,
		PickUpBy: r.PickUpBy.UTC(), DoneBy: r.DoneBy.UTC(), CreatedAt: r.CreatedAt.UTC(), StartedAt: instant(r.StartedAt), FinishedAt: instant(r.FinishedAt),
	}
	if r.Slots != nil {
		o.Slots = protocol.Slots{From: r.Slots.From, To: r.Slots.To}
	}
	if r.Fault != nil {
		o.Fault = &r.Fault.Of
	}
	if r.Evidence != nil {
		o.Evidence = r.Evidence.Of
	}
	if r.Signed != nil {
		o.Signed = &r.Signed.Of
	}
	return o
}

// OpenStep implements fleet.Operations.
func (s *Fleet) OpenStep(ctx context.Context, step fleet.Step, at time.Time) (ids.Step, error) {
	var found []ids.Step
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		row := stepRow{ID: ids.Make[ids.Step](), LeaseID: step.Lease, FabricID: step.Fabric, NodeID: step.Node, Kind: step.Kind, Attempt: step.Attempt, CreatedAt: at}
		if err := conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&row).Error; err != nil {
			return err
		}
		return stepOf(conn(ctx), step).Model(&stepRow{}).Select("id").Clauses(clause.Locking{Strength: "NO KEY UPDATE"}).Scan(&found).Error
	})
	if err != nil {
		return ids.Step{}, fmt.Errorf("open step: %w", translate(err))
	}
	if len(found) != 1 {
		return ids.Step{}, fmt.Errorf("open step: found %d of its name", len(found))
	}
	return found[0], nil
}

func stepOf(db *gorm.DB, step fleet.Step) *gorm.DB {
	return db.Where("lease_id IS NOT DISTINCT FROM ? AND fabric_id IS NOT DISTINCT FROM ? AND kind = ? AND attempt = ?",
		step.Lease, step.Fabric, step.Kind, step.Attempt)
}

// AddOperations implements fleet.Operations.
func (s *Fleet) AddOperations(ctx context.Context, operations []fleet.Operation, keys []string) (map[ids.Operation]bool, error) {
	if len(operations) == 0 {
		return map[ids.Operation]bool{}, nil
	}
	rows := make([]operationRow, len(operations))
	for i, o := range operations {
		rows[i] = newOperationRow(o, keys[i])
	}
	written := make(map[ids.Operation]bool, len(rows))
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		once := clause.OnConflict{Columns: []clause.Column{{Name: "dedup_key"}}, DoNothing: true}
		if err := conn(ctx).Clauses(once).CreateInBatches(&rows, insertBatch).Error; err != nil {
			return err
		}
		var found []ids.Operation
		made := uuidTexts(each(operations, func(o fleet.Operation) ids.Operation { return o.ID }))
		if err := conn(ctx).Raw("SELECT id FROM operation WHERE id = ANY(?::text[]::uuid[])", textArray(made)).Scan(&found).Error; err != nil {
			return err
		}
		for _, id := range found {
			written[id] = true
		}
		return wake(ctx, operations, written)
	})
	if err != nil {
		return nil, fmt.Errorf("insert operations: %w", translate(err))
	}
	return written, nil
}

// wake tells the agents that have something new to do, each once.
func wake(ctx context.Context, operations []fleet.Operation, written map[ids.Operation]bool) error {
	var agents []string
	for _, o := range operations {
		if written[o.ID] && !o.State.Final() && !o.Agent.IsZero() && !slices.Contains(agents, o.Agent.String()) {
			agents = append(agents, o.Agent.String())
		}
	}
	return announce(ctx, fleet.Channel, agents)
}

// CountDown implements fleet.Operations. The row's lock is what makes exactly one caller see 0.
func (s *Fleet) CountDown(ctx context.Context, id ids.Step, done, failed int, at time.Time) (int, ids.Node, error) {
	var left []struct {
		Remaining int
		NodeID    ids.Node
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			UPDATE step SET remaining = remaining - @done, failed = failed + @failed,
				finished_at = CASE WHEN remaining = @done THEN CAST(@at AS timestamptz) END
			WHERE id = @id RETURNING remaining, node_id`, map[string]any{"done": done, "failed": failed, "at": at, "id": id}).Scan(&left).Error
	})
	if err != nil {
		return 0, ids.Node{}, fmt.Errorf("count step down: %w", translate(err))
	}
	if len(left) != 1 {
		return 0, ids.Node{}, fault.New(fault.NotFound, "step-not-found", "there is no such step")
	}
	return left[0].Remaining, left[0].NodeID, nil
}

// Waiting implements fleet.Operations.
func (s *Fleet) Waiting(ctx context.Context, agents []ids.Agent, now time.Time) (map[ids.Agent]bool, error) {
	rows, err := scan[ids.Agent](ctx, s.db, "SELECT DISTINCT agent_id FROM operation WHERE agent_id IN ? AND state = 'queued' AND pick_up_by > ?", agents, now)
	if err != nil {
		return nil, fmt.Errorf("find waiting agents: %w", err)
	}
	waiting := make(map[ids.Agent]bool, len(rows))
	for _, id := range rows {
		waiting[id] = true
	}
	return waiting, nil
}

// OfAgent implements fleet.Operations.
func (s *Fleet) OfAgent(ctx context.Context, agent ids.Agent, states []fleet.State, now time.Time, limit int) ([]fleet.Operation, error) {
	return s.operations(ctx, func(db *gorm.DB) *gorm.DB {
		find := db.Where("agent_id = ? AND state IN ? AND (state <> 'queued' OR pick_up_by > ?)", agent, states, now).Order("created_at, id")
		if limit > 0 {
			find = find.Limit(limit)
		}
		return find
	})
}

func (s *Fleet) operations(ctx context.Context, narrow func(*gorm.DB) *gorm.DB) ([]fleet.Operation, error) {
	var rows []operationRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return narrow(conn(ctx)).Find(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", translate(err))
	}
	return each(rows, toOperation), nil
}

func noOperation() error {
	return fault.New(fault.NotFound, "operation-not-found", "there is no such operation")
}

// ForUpdate implements fleet.Operations.
func (s *Fleet) ForUpdate(ctx context.Context, agent ids.Agent, id ids.Operation) (fleet.Operation, error) {
	found, err := s.operations(ctx, func(db *gorm.DB) *gorm.DB {
		return db.Where("id = ? AND agent_id IS NOT DISTINCT FROM ?", id, agent).Clauses(clause.Locking{Strength: "NO KEY UPDATE"})
	})
	if err != nil {
		return fleet.Operation{}, err
	}
	if len(found) == 0 {
		return fleet.Operation{}, noOperation()
	}
	return found[0], nil
}

// Advance implements fleet.Operations. Progress never goes back.
func (s *Fleet) Advance(ctx context.Context, agent ids.Agent, id ids.Operation, p protocol.Progress, at time.Time) error {
	var known []bool
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			WITH moved AS (
				UPDATE operation SET state = 'running', started_at = coalesce(started_at, CAST(@at AS timestamptz)), percent = greatest(percent, @percent), phase = @phase
				WHERE id = @id AND agent_id IS NOT DISTINCT FROM @agent AND state IN ('queued', 'running'))
			SELECT true FROM operation WHERE id = @id AND agent_id IS NOT DISTINCT FROM @agent`,
			map[string]any{"at": at, "percent": p.Percent, "phase": p.Phase, "id": id, "agent": agent}).Scan(&known).Error
	})
	if err != nil {
		return fmt.Errorf("advance operation: %w", translate(err))
	}
	if len(known) == 0 {
		return noOperation()
	}
	return nil
}

// Finish implements fleet.Operations.
func (s *Fleet) Finish(ctx context.Context, id ids.Operation, e fleet.Ended) (bool, error) {
	change := map[string]any{"state": string(e.State), "fault": optional(e.Fault), "signed": optional(e.Signed), "finished_at": e.At}
	if e.Evidence != nil {
		change["evidence"] = document[json.RawMessage]{e.Evidence}
	}
	if e.State == fleet.Succeeded {
		change["percent"] = 100
	}
	var ended bool
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Model(&operationRow{}).Where("id = ? AND state IN ('queued', 'running')", id).Updates(change)
		ended = done.RowsAffected == 1
		return done.Error
	})
	if err != nil {
		return false, fmt.Errorf("finish operation: %w", translate(err))
	}
	return ended, nil
}

// Ours implements fleet.Operations.
func (s *Fleet) Ours(ctx context.Context, kind protocol.OperationKind) ([]fleet.Operation, error) {
	return s.operations(ctx, func(db *gorm.DB) *gorm.DB {
		return db.Raw(`SELECT DISTINCT ON (node_id) * FROM operation
			WHERE agent_id IS NULL AND kind = ? AND state IN ('queued', 'running') ORDER BY node_id, created_at, id`, string(kind))
	})
}

// Late implements fleet.Operations.
func (s *Fleet) Late(ctx context.Context, now time.Time, limit int) ([]fleet.Operation, error) {
	return s.operations(ctx, func(db *gorm.DB) *gorm.DB {
		return db.Where("(state = 'queued' AND pick_up_by <= ?) OR (state = 'running' AND done_by <= ?)", now, now).Order("id").Limit(limit).
			Clauses(clause.Locking{Strength: "NO KEY UPDATE", Options: "SKIP LOCKED"})
	})
}

// StepOf implements fleet.Operations.
func (s *Fleet) StepOf(ctx context.Context, step fleet.Step) (fleet.StepStatus, error) {
	var rows []stepRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return stepOf(conn(ctx), step).Find(&rows).Error })
	if err != nil {
		return fleet.StepStatus{}, fmt.Errorf("read step: %w", translate(err))
	}
	if len(rows) == 0 {
		return fleet.StepStatus{}, nil
	}
	status := fleet.StepStatus{ID: rows[0].ID, Remaining: rows[0].Remaining, Failed: rows[0].Failed}
	status.Operations, err = s.operations(ctx, func(db *gorm.DB) *gorm.DB { return db.Where("step_id = ?", status.ID).Order("created_at, id") })
	return status, err
}
