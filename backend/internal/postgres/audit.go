package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/ids"
)

// AuditEvents keeps the audit log. It implements audit.Store.
type AuditEvents struct{ db *DB }

var _ audit.Store = (*AuditEvents)(nil)

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
	At        time.Time
}

func (auditEventRow) TableName() string { return "audit_event" }

// AddAuditEvent implements audit.Store.
func (s *AuditEvents) AddAuditEvent(ctx context.Context, e audit.Event) error {
	row := auditEventRow{ID: e.ID, OrgID: e.Org, Actor: e.Actor, Action: e.Action, Target: e.Target, RequestID: e.RequestID, At: e.At}
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
