package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

type segmentRow struct {
	LeaseID        ids.Lease `gorm:"primaryKey"`
	Seq            int       `gorm:"primaryKey;autoIncrement:false"`
	OrgID          ids.Org
	StartAt        time.Time
	EndAt          time.Time
	PriceVersionID ids.Price
	RateMicros     int64
	TaxRateBps     int
	Terms          document[lease.Terms]
	CreatedAt      time.Time
}

func (segmentRow) TableName() string { return "lease_segment" }

func newSegmentRow(l lease.Lease, s lease.Segment) segmentRow {
	return segmentRow{
		LeaseID: l.ID, Seq: s.Seq, OrgID: l.Org, StartAt: s.Start, EndAt: s.End, PriceVersionID: s.PriceVersion,
		RateMicros: s.Rate.Micros, TaxRateBps: s.TaxRateBPS, Terms: document[lease.Terms]{s.Terms}, CreatedAt: s.CreatedAt,
	}
}

// pricedSegment is a segment with the currency that its lease names.
type pricedSegment struct {
	Segment  segmentRow `gorm:"embedded"`
	Currency string
}

func toSegment(p pricedSegment) lease.Segment {
	r := p.Segment
	return lease.Segment{
		Seq: r.Seq, Start: r.StartAt.UTC(), End: r.EndAt.UTC(), PriceVersion: r.PriceVersionID, TaxRateBPS: r.TaxRateBps,
		Rate: money.Rate{Micros: r.RateMicros, Currency: money.Currency(p.Currency)}, Terms: r.Terms.Of, CreatedAt: r.CreatedAt.UTC(),
	}
}

// InsertSegment writes the lease's next segment.
func (s *Leases) InsertSegment(ctx context.Context, l lease.Lease, segment lease.Segment) error {
	row := newSegmentRow(l, segment)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert segment: %w", err)
	}
	return nil
}

// Segments reads a lease's segments in order.
func (s *Leases) Segments(ctx context.Context, id ids.Lease) ([]lease.Segment, error) {
	var rows []pricedSegment
	err := conn(ctx).Raw(`
		SELECT s.*, l.currency FROM lease_segment s JOIN lease l ON l.id = s.lease_id
		WHERE s.lease_id = ? ORDER BY s.seq`, id).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read segments: %w", err)
	}
	return each(rows, toSegment), nil
}

type leaseSSHKeyRow struct {
	LeaseID   ids.Lease  `gorm:"primaryKey"`
	SSHKeyID  ids.SSHKey `gorm:"primaryKey;column:ssh_key_id"`
	OrgID     ids.Org
	Name      string
	PublicKey string
}

func (leaseSSHKeyRow) TableName() string { return "lease_ssh_key" }

// InsertSSHKeys freezes the keys that were named at booking.
func (s *Leases) InsertSSHKeys(ctx context.Context, l lease.Lease, keys []lease.SSHKey) error {
	if len(keys) == 0 {
		return nil
	}
	rows := each(keys, func(k lease.SSHKey) leaseSSHKeyRow {
		return leaseSSHKeyRow{LeaseID: l.ID, SSHKeyID: k.ID, OrgID: l.Org, Name: k.Name, PublicKey: k.PublicKey}
	})
	if err := conn(ctx).Create(&rows).Error; err != nil {
		return fmt.Errorf("insert lease's keys: %w", err)
	}
	return nil
}

// SSHKeys reads the keys as they were at booking.
func (s *Leases) SSHKeys(ctx context.Context, id ids.Lease) ([]lease.SSHKey, error) {
	var rows []leaseSSHKeyRow
	if err := conn(ctx).Where("lease_id = ?", id).Order("ssh_key_id").Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("read lease's keys: %w", err)
	}
	return each(rows, func(r leaseSSHKeyRow) lease.SSHKey {
		return lease.SSHKey{ID: r.SSHKeyID, Name: r.Name, PublicKey: r.PublicKey}
	}), nil
}

type leaseEventRow struct {
	LeaseID ids.Lease `gorm:"primaryKey"`
	Seq     int64     `gorm:"primaryKey;autoIncrement:false"`
	OrgID   ids.Org
	Type    string
	At      time.Time
	Actor   string
	Data    document[map[string]any]
}

func (leaseEventRow) TableName() string { return "lease_event" }

func toLeaseEvent(r leaseEventRow) lease.Event {
	return lease.Event{
		Lease: r.LeaseID, Org: r.OrgID, Seq: r.Seq, Type: lease.EventType(r.Type), At: r.At.UTC(), Actor: r.Actor, Data: r.Data.Of,
	}
}

// AppendEvent writes the event behind the lease's last one, and returns it with the Seq and Org that it got. It locks the lease's
// row until the transaction ends, hence the numbers have no gaps. An empty Actor is "system". The organization's webhooks are told as well.
//
// It returns a NotFound fault when there is no such lease.
func (s *Leases) AppendEvent(ctx context.Context, e lease.Event) (lease.Event, error) {
	if e.Actor == "" {
		e.Actor = "system"
	}
	if e.Data == nil {
		e.Data = map[string]any{}
	}
	data, err := json.Marshal(e.Data)
	if err != nil {
		return lease.Event{}, fmt.Errorf("encode event: %w", err)
	}
	var drawn []struct {
		Seq   int64
		OrgID ids.Org
	}
	err = conn(ctx).Raw(`
		WITH next AS (UPDATE lease SET event_seq = event_seq + 1 WHERE id = ? RETURNING id, org_id, event_seq)
		INSERT INTO lease_event (lease_id, seq, org_id, type, at, actor, data)
		SELECT id, event_seq, org_id, ?, ?, ?, ? FROM next RETURNING seq, org_id`,
		e.Lease, string(e.Type), e.At, e.Actor, string(data)).Scan(&drawn).Error
	if err != nil {
		return lease.Event{}, fmt.Errorf("append event: %w", err)
	}
	if len(drawn) == 0 {
		return lease.Event{}, noLease()
	}
	e.Seq, e.Org = drawn[0].Seq, drawn[0].OrgID
	return e, publishLeaseEvent(ctx, e)
}

// Events reads the log behind the event numbered after (0: from the first), in order, at most limit (0: all).
func (s *Leases) Events(ctx context.Context, id ids.Lease, after int64, limit int) ([]lease.Event, error) {
	find := conn(ctx).Where("lease_id = ? AND seq > ?", id, after).Order("seq")
	if limit > 0 {
		find = find.Limit(limit)
	}
	var rows []leaseEventRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return each(rows, toLeaseEvent), nil
}

// Recorded reads the values of one field of the data of the lease's events of that type, in order.
func (s *Leases) Recorded(ctx context.Context, id ids.Lease, event lease.EventType, field string) ([]string, error) {
	var values []string
	err := conn(ctx).Raw("SELECT data->>? FROM lease_event WHERE lease_id = ? AND type = ? AND data->>? IS NOT NULL ORDER BY seq",
		field, id, string(event), field).Scan(&values).Error
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return values, nil
}
