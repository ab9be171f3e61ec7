package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/power"
)

// Power keeps machines with their BMCs, and tickets: market tables, read and written in the platform role.
type Power struct{ db *DB }

var _ power.Machines = (*Power)(nil)

// NewPower returns the machines of db.
func NewPower(db *DB) *Power { return &Power{db: db} }

type machineRow struct {
	NodeID      ids.Node  `gorm:"primaryKey"`
	BMCURL      string    `gorm:"column:bmc_url"`
	BMCUser     string    `gorm:"column:bmc_user"`
	BMCSecret   []byte    `gorm:"column:bmc_secret"`
	BMCPin      []byte    `gorm:"column:bmc_pin"`
	BMCSystem   string    `gorm:"column:bmc_system"`
	MACs        textArray `gorm:"column:macs"`
	AccessHost  string
	AccessPort  int
	Stage       string
	StageSince  time.Time
	Worker      string
	WorkerUntil *time.Time
	CreatedAt   time.Time
}

func (machineRow) TableName() string { return "machine" }

type namedMachineRow struct {
	Machine machineRow `gorm:"embedded"`
	Name    string
}

func toMachine(r namedMachineRow) power.Machine {
	m := r.Machine
	return power.Machine{
		Node: m.NodeID, Name: r.Name, BMC: power.Address{URL: m.BMCURL, User: m.BMCUser, Secret: m.BMCSecret, Pin: m.BMCPin, System: m.BMCSystem},
		MACs: m.MACs, AccessHost: m.AccessHost, AccessPort: m.AccessPort, Stage: power.Stage(m.Stage), StageSince: m.StageSince.UTC(), CreatedAt: m.CreatedAt.UTC(),
	}
}

// PutMachine implements power.Machines.
func (s *Power) PutMachine(ctx context.Context, m power.Machine) error {
	pin := m.BMC.Pin
	if pin == nil {
		pin = []byte{}
	}
	row := machineRow{
		NodeID: m.Node, BMCURL: m.BMC.URL, BMCUser: m.BMC.User, BMCSecret: m.BMC.Secret, BMCPin: pin, BMCSystem: m.BMC.System, MACs: m.MACs,
		AccessHost: m.AccessHost, AccessPort: m.AccessPort, Stage: string(m.Stage), StageSince: m.StageSince, CreatedAt: m.CreatedAt,
	}
	changed := []string{"bmc_url", "bmc_user", "bmc_secret", "bmc_pin", "bmc_system", "macs", "access_host", "access_port"}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "node_id"}}, DoUpdates: clause.AssignmentColumns(changed)}).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("put machine: %w", translate(err))
	}
	return nil
}

const readMachine = "SELECT m.*, n.name FROM machine m JOIN node n ON n.id = m.node_id WHERE "

func (s *Power) machine(ctx context.Context, where string, args ...any) (power.Machine, error) {
	rows, err := scan[namedMachineRow](ctx, s.db, readMachine+where, args...)
	if err != nil {
		return power.Machine{}, err
	}
	if len(rows) == 0 {
		return power.Machine{}, fault.New(fault.NotFound, "machine-not-found", "there is no such machine")
	}
	return toMachine(rows[0]), nil
}

// Machine implements power.Machines.
func (s *Power) Machine(ctx context.Context, node ids.Node) (power.Machine, error) {
	return s.machine(ctx, "m.node_id = ?", node)
}

// MachineByMAC implements power.Machines.
func (s *Power) MachineByMAC(ctx context.Context, mac string) (power.Machine, error) {
	return s.machine(ctx, "m.macs @> ?::text[] ORDER BY m.created_at LIMIT 1", textArray{mac})
}

func (s *Power) exec(ctx context.Context, what, statement string, args ...any) (int64, error) {
	var affected int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec(statement, args...)
		affected = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, translate(err))
	}
	return affected, nil
}

// SetStage implements power.Machines.
func (s *Power) SetStage(ctx context.Context, node ids.Node, stage power.Stage, at time.Time) error {
	_, err := s.exec(ctx, "set stage", "UPDATE machine SET stage = ?, stage_since = ? WHERE node_id = ?", string(stage), at, node)
	return err
}

// Claim implements power.Machines.
func (s *Power) Claim(ctx context.Context, node ids.Node, worker string, now, until time.Time) (bool, error) {
	n, err := s.exec(ctx, "claim machine",
		"UPDATE machine SET worker = ?, worker_until = ? WHERE node_id = ? AND (worker = ? OR worker_until IS NULL OR worker_until <= ?)",
		worker, until, node, worker, now)
	return n == 1, err
}

// Unclaim implements power.Machines.
func (s *Power) Unclaim(ctx context.Context, node ids.Node, worker string) error {
	_, err := s.exec(ctx, "give machine back", "UPDATE machine SET worker = '', worker_until = NULL WHERE node_id = ? AND worker = ?", node, worker)
	return err
}

type bootTicketRow struct {
	ID           ids.Operation `gorm:"primaryKey"`
	NodeID       ids.Node
	Purpose      string
	AllocationID ids.Allocation
	Epoch        int64
	TokenHash    []byte
	ExpiresAt    time.Time
	CreatedAt    time.Time
	UsedAt       *time.Time
	UsedBy       []byte
	Call         *document[power.Call]
}

func (bootTicketRow) TableName() string { return "boot_ticket" }

func newBootTicketRow(t power.Ticket) bootTicketRow {
	return bootTicketRow{
		ID: t.ID, NodeID: t.Node, Purpose: string(t.Purpose), AllocationID: t.Allocation, Epoch: t.Epoch, TokenHash: t.Hash, ExpiresAt: t.ExpiresAt,
		CreatedAt: t.CreatedAt, UsedAt: nullable(t.UsedAt), UsedBy: t.UsedBy, Call: optional(t.Call),
	}
}

func toTicket(r bootTicketRow) power.Ticket {
	t := power.Ticket{
		ID: r.ID, Node: r.NodeID, Purpose: power.Purpose(r.Purpose), Allocation: r.AllocationID, Epoch: r.Epoch, Hash: r.TokenHash, ExpiresAt: r.ExpiresAt.UTC(),
		CreatedAt: r.CreatedAt.UTC(), UsedAt: instant(r.UsedAt), UsedBy: r.UsedBy,
	}
	if r.Call != nil {
		t.Call = &r.Call.Of
	}
	return t
}

// PutTicket implements power.Machines.
func (s *Power) PutTicket(ctx context.Context, t power.Ticket) error {
	row := newBootTicketRow(t)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		again := clause.OnConflict{Columns: []clause.Column{{Name: "id"}}, DoUpdates: clause.AssignmentColumns([]string{"expires_at"})}
		return conn(ctx).Clauses(again).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("put ticket: %w", translate(err))
	}
	return nil
}

func (s *Power) ticket(ctx context.Context, where string, args ...any) (power.Ticket, bool, error) {
	rows, err := scan[bootTicketRow](ctx, s.db, "SELECT * FROM boot_ticket WHERE "+where, args...)
	if err != nil || len(rows) == 0 {
		return power.Ticket{}, false, err
	}
	return toTicket(rows[0]), true, nil
}

// Ticket implements power.Machines.
func (s *Power) Ticket(ctx context.Context, id ids.Operation) (power.Ticket, bool, error) {
	return s.ticket(ctx, "id = ?", id)
}

// TicketByHash implements power.Machines.
func (s *Power) TicketByHash(ctx context.Context, hash []byte) (power.Ticket, bool, error) {
	return s.ticket(ctx, "token_hash = ? FOR UPDATE", hash)
}

// Armed implements power.Machines.
func (s *Power) Armed(ctx context.Context, node ids.Node, now time.Time) (power.Ticket, bool, error) {
	return s.ticket(ctx, "node_id = ? AND purpose = 'service' AND used_at IS NULL AND expires_at > ? ORDER BY created_at DESC LIMIT 1 FOR UPDATE", node, now)
}

// PhoneTicket implements power.Machines.
func (s *Power) PhoneTicket(ctx context.Context, allocation ids.Allocation, epoch int64) (power.Ticket, bool, error) {
	return s.ticket(ctx, "purpose = 'tenant' AND allocation_id = ? AND epoch = ? ORDER BY created_at DESC LIMIT 1", allocation, epoch)
}

// UpdateTicket implements power.Machines.
func (s *Power) UpdateTicket(ctx context.Context, t power.Ticket) error {
	row := newBootTicketRow(t)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&row).Select("token_hash", "expires_at", "used_at", "used_by", "call").Updates(&row).Error
	})
	if err != nil {
		return fmt.Errorf("update ticket: %w", translate(err))
	}
	return nil
}

// Disarm implements power.Machines.
func (s *Power) Disarm(ctx context.Context, node ids.Node, purpose power.Purpose, at time.Time) error {
	_, err := s.exec(ctx, "disarm", "UPDATE boot_ticket SET expires_at = ? WHERE node_id = ? AND purpose = ? AND expires_at > ?", at, node, string(purpose), at)
	return err
}

// Occupied implements power.Machines.
func (s *Power) Occupied(ctx context.Context, node ids.Node) (bool, error) {
	found, err := scan[bool](ctx, s.db, "SELECT EXISTS (SELECT FROM allocation WHERE node_id = ? AND released_at IS NULL AND state NOT IN ('held', 'released'))", node)
	return len(found) == 1 && found[0], err
}

// recentOperations is how many of a tenancy's operations are shown.
const recentOperations = 20

// Tenancy implements power.Machines.
func (s *Power) Tenancy(ctx context.Context, lease ids.Lease, allocation ids.Allocation) (power.Tenancy, error) {
	type row struct {
		NodeID ids.Node
		Epoch  int64
		Stage  string
		InUse  bool
		Busy   bool
	}
	// The machine's lock comes first: of two wishes at once, the second sees the first.
	_, err := scan[int](ctx, s.db, "SELECT 1 FROM machine WHERE node_id = (SELECT node_id FROM allocation WHERE id = ? AND lease_id = ?) FOR UPDATE", allocation, lease)
	if err != nil {
		return power.Tenancy{}, err
	}
	rows, err := scan[row](ctx, s.db, `
		SELECT a.node_id, a.epoch, CASE WHEN n.mode = 'bare_metal' THEN coalesce(k.stage, '') ELSE '' END AS stage,
		       l.state = 'active' AND a.state = 'in_use' AND a.released_at IS NULL AS in_use,
		       EXISTS (SELECT FROM operation o WHERE o.node_id = a.node_id AND o.agent_id IS NULL AND o.kind = ? AND o.state IN ('queued', 'running')) AS busy
		FROM allocation a JOIN lease l ON l.id = a.lease_id JOIN node n ON n.id = a.node_id LEFT JOIN machine k ON k.node_id = a.node_id
		WHERE a.id = ? AND a.lease_id = ?`, string(power.Kind), allocation, lease)
	if err != nil {
		return power.Tenancy{}, err
	}
	if len(rows) == 0 {
		return power.Tenancy{}, fault.New(fault.NotFound, "instance-not-found", "the lease has no such instance")
	}
	r := rows[0]
	t := power.Tenancy{Node: r.NodeID, Epoch: r.Epoch, Stage: power.Stage(r.Stage), InUse: r.InUse, Busy: r.Busy}
	t.Recent, err = s.recent(ctx, allocation)
	return t, err
}

func (s *Power) recent(ctx context.Context, allocation ids.Allocation) ([]power.Past, error) {
	type row struct {
		ID         ids.Operation
		State      string
		Spec       document[power.Order]
		Evidence   document[power.Evidence]
		Fault      document[*protocol.Fault]
		CreatedAt  time.Time
		FinishedAt *time.Time
	}
	rows, err := scan[row](ctx, s.db, `SELECT id, state, spec, evidence, fault, created_at, finished_at FROM operation
		WHERE allocation_id = ? AND kind = ? ORDER BY created_at DESC, id DESC LIMIT ?`, allocation, string(power.Kind), recentOperations)
	return each(rows, func(r row) power.Past {
		return power.Past{
			ID: r.ID, Goal: r.Spec.Of.Goal, State: r.State, Seen: r.Evidence.Of.State, Fault: r.Fault.Of, CreatedAt: r.CreatedAt.UTC(), FinishedAt: instant(r.FinishedAt),
		}
	}), err
}

// Stands implements power.Machines.
func (s *Power) Stands(ctx context.Context, allocation ids.Allocation, epoch int64, wish bool) (bool, error) {
	if allocation.IsZero() {
		return true, nil
	}
	found, err := scan[bool](ctx, s.db, `
		SELECT NOT ? OR l.state = 'active' FROM allocation a JOIN lease l ON l.id = a.lease_id
		WHERE a.id = ? AND a.epoch = ? AND a.released_at IS NULL`, wish, allocation, epoch)
	return len(found) == 1 && found[0], err
}
