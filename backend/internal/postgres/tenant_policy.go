package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type policyRow struct {
	OrgID               ids.Org `gorm:"primaryKey"`
	InstanceTypes       *textArray
	Sites               *textArray
	MaxDurationSeconds  *int64
	MaxLeaseMinor       *int64
	MaxKeySeconds       *int64
	RequireSecondFactor bool
	Version             int64
	UpdatedAt           time.Time
}

func (policyRow) TableName() string { return "organization_policy" }

// positive is NULL for no limit.
func positive(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	return new(int64(d / time.Second))
}

func inSeconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// Policy implements tenant.Policies.
func (s *Tenants) Policy(ctx context.Context, org ids.Org) (tenant.Policy, error) {
	var rows []policyRow
	if err := conn(ctx).Where("org_id = ?", org).Limit(1).Find(&rows).Error; err != nil {
		return tenant.Policy{}, fmt.Errorf("read policy: %w", err)
	}
	if len(rows) == 0 {
		return tenant.Policy{Org: org, Version: 1}, nil
	}
	r := rows[0]
	return tenant.Policy{
		Org: r.OrgID, InstanceTypes: (*[]string)(r.InstanceTypes), Sites: (*[]string)(r.Sites), MaxDuration: inSeconds(r.MaxDurationSeconds),
		MaxLeaseMinor: r.MaxLeaseMinor, MaxKeyLife: inSeconds(r.MaxKeySeconds), RequireSecondFactor: r.RequireSecondFactor, Version: r.Version,
	}, nil
}

// PutPolicy implements tenant.Policies. The version that it replaces is one lower than the policy's own, or there is none yet.
func (s *Tenants) PutPolicy(ctx context.Context, p tenant.Policy, at time.Time) error {
	row := policyRow{
		OrgID: p.Org, InstanceTypes: (*textArray)(p.InstanceTypes), Sites: (*textArray)(p.Sites), MaxDurationSeconds: positive(p.MaxDuration),
		MaxLeaseMinor: p.MaxLeaseMinor, MaxKeySeconds: positive(p.MaxKeyLife), RequireSecondFactor: p.RequireSecondFactor, Version: p.Version, UpdatedAt: at,
	}
	done := conn(ctx).Clauses(clause.OnConflict{
		Columns:   []clause.Column{{Name: "org_id"}},
		UpdateAll: true,
		Where:     clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "organization_policy.version = ?", Vars: []any{p.Version - 1}}}},
	}).Create(&row)
	if done.Error != nil {
		return fmt.Errorf("write policy: %w", done.Error)
	}
	if done.RowsAffected == 0 {
		return fault.New(fault.Stale, "stale", "it has changed since you read it; read it again")
	}
	return nil
}

type secondFactorRow struct {
	UserID      ids.User `gorm:"primaryKey"`
	Secret      []byte
	ConfirmedAt *time.Time
	LastStep    int64
	CreatedAt   time.Time
}

func (secondFactorRow) TableName() string { return "second_factor" }

// SecondFactorForUpdate implements tenant.SecondFactors. People are no tenants' rows: like all of these, it looks with the platform's eyes.
func (s *Tenants) SecondFactorForUpdate(ctx context.Context, user ids.User) (tenant.SecondFactor, error) {
	var factor tenant.SecondFactor
	err := s.db.asPlatform(ctx, func(ctx context.Context) (err error) {
		factor, err = takeOne(conn(ctx).Where("user_id = ?", user).Clauses(clause.Locking{Strength: "UPDATE"}), func(r secondFactorRow) tenant.SecondFactor {
			return tenant.SecondFactor{User: r.UserID, Secret: r.Secret, ConfirmedAt: instant(r.ConfirmedAt), LastStep: r.LastStep, CreatedAt: r.CreatedAt.UTC()}
		}, "second factor")
		return err
	})
	return factor, err
}

// PutSecondFactor implements tenant.SecondFactors.
func (s *Tenants) PutSecondFactor(ctx context.Context, f tenant.SecondFactor) error {
	row := secondFactorRow{UserID: f.User, Secret: f.Secret, ConfirmedAt: nullable(f.ConfirmedAt), LastStep: f.LastStep, CreatedAt: f.CreatedAt}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "user_id"}}, UpdateAll: true}).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("write second factor: %w", err)
	}
	return nil
}

// run sends one statement as the platform, and returns how many rows it concerned.
func (s *Tenants) run(ctx context.Context, what, sql string, args ...any) (int64, error) {
	var rows int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec(sql, args...)
		rows = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return rows, nil
}

// DeleteSecondFactor implements tenant.SecondFactors.
func (s *Tenants) DeleteSecondFactor(ctx context.Context, user ids.User) error {
	if _, err := s.run(ctx, "delete recovery codes", "DELETE FROM recovery_code WHERE user_id = ?", user); err != nil {
		return err
	}
	_, err := s.run(ctx, "delete second factor", "DELETE FROM second_factor WHERE user_id = ?", user)
	return err
}

// SetRecoveryCodes implements tenant.SecondFactors.
func (s *Tenants) SetRecoveryCodes(ctx context.Context, user ids.User, hashes [][]byte) error {
	if _, err := s.run(ctx, "delete recovery codes", "DELETE FROM recovery_code WHERE user_id = ?", user); err != nil {
		return err
	}
	for _, hash := range hashes {
		if _, err := s.run(ctx, "insert recovery code", "INSERT INTO recovery_code (user_id, hash) VALUES (?, ?)", user, hash); err != nil {
			return err
		}
	}
	return nil
}

// UseRecoveryCode implements tenant.SecondFactors.
func (s *Tenants) UseRecoveryCode(ctx context.Context, user ids.User, hash []byte) (bool, error) {
	n, err := s.run(ctx, "use recovery code", "DELETE FROM recovery_code WHERE user_id = ? AND hash = ?", user, hash)
	return n == 1, err
}

// StrengthenSession implements tenant.SecondFactors.
func (s *Tenants) StrengthenSession(ctx context.Context, id ids.Session) error {
	_, err := s.run(ctx, "strengthen session", "UPDATE session SET second_factor = true WHERE id = ?", id)
	return err
}
