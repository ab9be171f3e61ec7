package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type sessionRow struct {
	ID           ids.Session `gorm:"primaryKey"`
	OrgID        ids.Org
	UserID       ids.User
	RefreshHash  []byte
	PreviousHash []byte
	UserAgent    string
	CreatedAt    time.Time
	RefreshedAt  time.Time
	ExpiresAt    time.Time
	RevokedAt    *time.Time
}

func (sessionRow) TableName() string { return "session" }

func newSessionRow(s tenant.Session) sessionRow {
	return sessionRow{
		ID: s.ID, OrgID: s.Org, UserID: s.User, RefreshHash: s.RefreshHash, PreviousHash: s.PreviousHash, UserAgent: s.UserAgent,
		CreatedAt: s.CreatedAt, RefreshedAt: s.RefreshedAt, ExpiresAt: s.ExpiresAt, RevokedAt: nullable(s.RevokedAt),
	}
}

func toSession(r sessionRow) tenant.Session {
	return tenant.Session{
		ID: r.ID, Org: r.OrgID, User: r.UserID, RefreshHash: r.RefreshHash, PreviousHash: r.PreviousHash, UserAgent: r.UserAgent,
		CreatedAt: r.CreatedAt.UTC(), RefreshedAt: r.RefreshedAt.UTC(), ExpiresAt: r.ExpiresAt.UTC(), RevokedAt: instant(r.RevokedAt),
	}
}

// CreateSession implements tenant.Sessions; only the platform may.
func (s *Tenants) CreateSession(ctx context.Context, session tenant.Session) error {
	row := newSessionRow(session)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert session: %w", err)
	}
	return nil
}

// SessionByRefreshHash implements tenant.Sessions.
func (s *Tenants) SessionByRefreshHash(ctx context.Context, hash []byte) (tenant.Session, error) {
	find := conn(ctx).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}).Where("refresh_hash = ? OR previous_hash = ?", hash, hash)
	return takeOne(find, toSession, "session")
}

// UpdateSession implements tenant.Sessions: the tokens and their times.
func (s *Tenants) UpdateSession(ctx context.Context, session tenant.Session) error {
	row := newSessionRow(session)
	err := conn(ctx).Model(&sessionRow{}).Where("id = ?", session.ID).
		Select("refresh_hash", "previous_hash", "refreshed_at", "expires_at").Updates(&row).Error
	if err != nil {
		return fmt.Errorf("update session: %w", err)
	}
	return nil
}

// RevokeSession implements tenant.Sessions; the first revocation's time stays.
func (s *Tenants) RevokeSession(ctx context.Context, id ids.Session, at time.Time) error {
	if err := conn(ctx).Model(&sessionRow{}).Where("id = ? AND revoked_at IS NULL", id).Update("revoked_at", at).Error; err != nil {
		return fmt.Errorf("revoke session: %w", err)
	}
	return nil
}
