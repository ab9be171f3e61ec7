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
	SecondFactor bool
}

func (sessionRow) TableName() string { return "session" }

func newSessionRow(s tenant.Session) sessionRow {
	return sessionRow{
		ID: s.ID, OrgID: s.Org, UserID: s.User, RefreshHash: s.RefreshHash, PreviousHash: s.PreviousHash, UserAgent: s.UserAgent,
		CreatedAt: s.CreatedAt, RefreshedAt: s.RefreshedAt, ExpiresAt: s.ExpiresAt, RevokedAt: nullable(s.RevokedAt), SecondFactor: s.SecondFactor,
	}
}

func toSession(r sessionRow) tenant.Session {
	return tenant.Session{
		ID: r.ID, Org: r.OrgID, User: r.UserID, RefreshHash: r.RefreshHash, PreviousHash: r.PreviousHash, UserAgent: r.UserAgent,
		CreatedAt: r.CreatedAt.UTC(), RefreshedAt: r.RefreshedAt.UTC(), ExpiresAt: r.ExpiresAt.UTC(), RevokedAt: instant(r.RevokedAt), SecondFactor: r.SecondFactor,
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

type sessionTokenRow struct {
	Hash      []byte
	SessionID ids.Session
	OrgID     ids.Org
	CreatedAt time.Time
	RetiredAt *time.Time
}

func (sessionTokenRow) TableName() string { return "session_token" }

// SessionByToken implements tenant.Sessions. The session is locked before its token is read: who comes second sees what the first made of it.
// A session that the release before this one has refreshed has a token in its own row only.
func (s *Tenants) SessionByToken(ctx context.Context, hash []byte) (tenant.Session, tenant.RefreshToken, error) {
	find := conn(ctx).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}).
		Where("id IN (SELECT session_id FROM session_token WHERE hash = ?) OR refresh_hash = ?", hash, hash)
	session, err := takeOne(find, toSession, "session")
	if err != nil {
		return tenant.Session{}, tenant.RefreshToken{}, err
	}
	var rows []sessionTokenRow
	if err := conn(ctx).Where("hash = ?", hash).Limit(1).Find(&rows).Error; err != nil {
		return tenant.Session{}, tenant.RefreshToken{}, fmt.Errorf("read refresh token: %w", err)
	}
	if len(rows) == 0 {
		return session, tenant.RefreshToken{Hash: hash, CreatedAt: session.RefreshedAt}, nil
	}
	return session, tenant.RefreshToken{Hash: hash, CreatedAt: rows[0].CreatedAt.UTC(), RetiredAt: instant(rows[0].RetiredAt)}, nil
}

// AddToken implements tenant.Sessions; only the platform may.
func (s *Tenants) AddToken(ctx context.Context, session tenant.Session, token tenant.RefreshToken) error {
	row := sessionTokenRow{Hash: token.Hash, SessionID: session.ID, OrgID: session.Org, CreatedAt: token.CreatedAt}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert refresh token: %w", err)
	}
	return nil
}

// RetireTokens implements tenant.Sessions; only the platform may.
func (s *Tenants) RetireTokens(ctx context.Context, session ids.Session, traded []byte, madeBefore, at time.Time) error {
	err := conn(ctx).Model(&sessionTokenRow{}).Where("session_id = ? AND retired_at IS NULL AND (hash = ? OR created_at < ?)", session, traded, madeBefore).
		Update("retired_at", at).Error
	if err != nil {
		return fmt.Errorf("retire refresh tokens: %w", err)
	}
	return nil
}

// ForgetTokens deletes up to limit refresh tokens that were retired before the instant, and returns how many.
func (s *Tenants) ForgetTokens(ctx context.Context, before time.Time, limit int) (int, error) {
	var gone int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec("DELETE FROM session_token WHERE hash IN (SELECT hash FROM session_token WHERE retired_at < ? LIMIT ?)", before, limit)
		gone = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return 0, fmt.Errorf("forget refresh tokens: %w", err)
	}
	return int(gone), nil
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

// Session implements tenant.Sessions; only the platform may.
func (s *Tenants) Session(ctx context.Context, id ids.Session) (tenant.Session, error) {
	return takeOne(conn(ctx).Where("id = ?", id), toSession, "session")
}

// RevokeSession implements tenant.Sessions; the first revocation's time stays.
func (s *Tenants) RevokeSession(ctx context.Context, id ids.Session, at time.Time) error {
	if err := conn(ctx).Model(&sessionRow{}).Where("id = ? AND revoked_at IS NULL", id).Update("revoked_at", at).Error; err != nil {
		return fmt.Errorf("revoke session: %w", err)
	}
	return nil
}
