package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/ids"
)

// AuditEvents keeps the audit log. It implements audit.Store, audit.Reads, audit.Chains and audit.Witness.
type AuditEvents struct{ db *DB }

var (
	_ audit.Store   = (*AuditEvents)(nil)
	_ audit.Reads   = (*AuditEvents)(nil)
	_ audit.Chains  = (*AuditEvents)(nil)
	_ audit.Witness = (*AuditEvents)(nil)
)

// NewAuditEvents returns the audit log of db.
func NewAuditEvents(db *DB) *AuditEvents { return &AuditEvents{db: db} }

type auditEventRow struct {
	ID        ids.Audit `gorm:"primaryKey"`
	OrgID     ids.Org
	Actor     string
	Action    string
	Target    string
	Before    *document[json.RawMessage]
	After     *document[json.RawMessage]
	RequestID string
	Source    string
	At        time.Time
}

func (auditEventRow) TableName() string { return "audit_event" }

// chainedRow is an event with its link; its Seq is 0 when it has none.
type chainedRow struct {
	Event    auditEventRow `gorm:"embedded"`
	Seq      int64
	Previous string
	Hash     string
}

func toAuditEvent(c chainedRow) audit.Event {
	r := c.Event
	e := audit.Event{
		ID: r.ID, Org: r.OrgID, Actor: r.Actor, Action: r.Action, Target: r.Target, RequestID: r.RequestID, Source: r.Source, At: r.At.UTC(),
		Link: audit.Link{Seq: c.Seq, Previous: c.Previous, Hash: c.Hash},
	}
	if r.Before != nil {
		e.Before = r.Before.Of
	}
	if r.After != nil {
		e.After = r.After.Of
	}
	return e
}

// AddAuditEvent implements audit.Store.
func (s *AuditEvents) AddAuditEvent(ctx context.Context, e audit.Event) error {
	row := auditEventRow{
		ID: e.ID, OrgID: e.Org, Actor: e.Actor, Action: e.Action, Target: e.Target, RequestID: e.RequestID, Source: e.Source, At: e.At,
	}
	if e.Before != nil {
		row.Before = &document[json.RawMessage]{e.Before}
	}
	if e.After != nil {
		row.After = &document[json.RawMessage]{e.After}
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert audit event: %w", err)
	}
	return nil
}

const chained = "SELECT e.*, coalesce(l.seq, 0) AS seq, coalesce(l.previous, '') AS previous, coalesce(l.hash, '') AS hash FROM audit_event e "

// AuditEvents implements audit.Reads.
func (s *AuditEvents) AuditEvents(ctx context.Context, f audit.Filter) ([]audit.Event, error) {
	where, args := []string{"true"}, []any{}
	when := func(chosen bool, condition string, values ...any) {
		if chosen {
			where, args = append(where, condition), append(args, values...)
		}
	}
	when(!f.Everybody && !f.Org.IsZero(), "e.org_id = ?", f.Org)
	when(!f.Everybody && f.Org.IsZero(), "e.org_id IS NULL")
	when(f.Actor != "", "e.actor = ?", f.Actor)
	when(strings.HasSuffix(f.Action, "."), "starts_with(e.action, ?)", f.Action)
	when(f.Action != "" && !strings.HasSuffix(f.Action, "."), "e.action = ?", f.Action)
	when(f.Target != "", "e.target = ?", f.Target)
	when(f.RequestID != "", "e.request_id = ?", f.RequestID)
	when(!f.Since.IsZero(), "e.at >= ?", f.Since)
	when(!f.Until.IsZero(), "e.at < ?", f.Until)
	when(!f.After.IsZero(), "e.id < ?", f.After)
	var rows []chainedRow
	err := conn(ctx).Raw(chained+"LEFT JOIN audit_link l ON l.event_id = e.id WHERE "+strings.Join(where, " AND ")+" ORDER BY e.id DESC LIMIT ?",
		append(args, f.Limit)...).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list audit events: %w", err)
	}
	return each(rows, toAuditEvent), nil
}

// ChainedEvents implements audit.Reads.
func (s *AuditEvents) ChainedEvents(ctx context.Context, org ids.Org, since, until time.Time, after int64, limit int) ([]audit.Event, error) {
	var rows []chainedRow
	err := conn(ctx).Raw(chained+`JOIN audit_link l ON l.event_id = e.id
		WHERE l.chain = coalesce(?::uuid, '00000000-0000-0000-0000-000000000000') AND l.seq > ?
		  AND (?::timestamptz IS NULL OR e.at >= ?) AND (?::timestamptz IS NULL OR e.at < ?)
		ORDER BY l.seq LIMIT ?`, org, after, nullable(since), nullable(since), nullable(until), nullable(until), limit).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read chain: %w", err)
	}
	return each(rows, toAuditEvent), nil
}

// chainLock is the advisory lock of whoever makes chains.
const chainLock = 7123

// Unchained implements audit.Chains. Under the lock, what is committed later comes later in its chain.
func (s *AuditEvents) Unchained(ctx context.Context, limit int) ([]audit.Event, error) {
	var free bool
	if err := conn(ctx).Raw("SELECT pg_try_advisory_xact_lock(?)", chainLock).Scan(&free).Error; err != nil || !free {
		return nil, err
	}
	var rows []chainedRow
	err := conn(ctx).Raw(`SELECT e.* FROM (SELECT * FROM audit_unchained ORDER BY position LIMIT ?) u JOIN audit_event e ON e.id = u.event_id
		ORDER BY u.position`, limit).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read unchained events: %w", err)
	}
	return each(rows, toAuditEvent), nil
}

// Heads implements audit.Chains.
func (s *AuditEvents) Heads(ctx context.Context, orgs []ids.Org) (map[ids.Org]audit.Link, error) {
	heads := make(map[ids.Org]audit.Link, len(orgs))
	for _, org := range orgs {
		var links []audit.Link
		err := conn(ctx).Raw(`SELECT seq, previous, hash FROM audit_link WHERE chain = coalesce(?::uuid, '00000000-0000-0000-0000-000000000000')
			ORDER BY seq DESC LIMIT 1`, org).Scan(&links).Error
		if err != nil {
			return nil, fmt.Errorf("read head of chain: %w", err)
		}
		if len(links) > 0 {
			heads[org] = links[0]
		}
	}
	return heads, nil
}

type auditLinkRow struct {
	OrgID    ids.Org
	Chain    string `gorm:"<-:false"` // the database's own
	Seq      int64
	EventID  ids.Audit
	Previous string
	Hash     string
}

func (auditLinkRow) TableName() string { return "audit_link" }

// AddLinks implements audit.Chains.
func (s *AuditEvents) AddLinks(ctx context.Context, events []audit.Event) error {
	rows := each(events, func(e audit.Event) auditLinkRow {
		return auditLinkRow{OrgID: e.Org, Seq: e.Link.Seq, EventID: e.ID, Previous: e.Link.Previous, Hash: e.Link.Hash}
	})
	if err := conn(ctx).CreateInBatches(&rows, insertBatch).Error; err != nil {
		return fmt.Errorf("insert links: %w", err)
	}
	taken := each(events, func(e audit.Event) ids.Audit { return e.ID })
	if err := conn(ctx).Exec("DELETE FROM audit_unchained WHERE event_id IN ?", taken).Error; err != nil {
		return fmt.Errorf("take events off the queue: %w", err)
	}
	return nil
}

// ChainNames implements audit.Witness.
func (s *AuditEvents) ChainNames(ctx context.Context) ([]ids.Org, error) {
	var orgs []ids.Org
	if err := conn(ctx).Raw("SELECT id FROM organization UNION ALL SELECT NULL").Scan(&orgs).Error; err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return orgs, nil
}

// Loose implements audit.Witness.
func (s *AuditEvents) Loose(ctx context.Context, before time.Time, limit int) ([]ids.Audit, error) {
	var loose []ids.Audit
	err := conn(ctx).Raw(`SELECT e.id FROM audit_event e WHERE e.at < ? AND NOT EXISTS (SELECT FROM audit_link l WHERE l.event_id = e.id)
		ORDER BY e.id LIMIT ?`, before, limit).Scan(&loose).Error
	if err != nil {
		return nil, fmt.Errorf("find loose events: %w", err)
	}
	return loose, nil
}
