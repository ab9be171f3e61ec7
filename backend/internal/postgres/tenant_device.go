package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type deviceGrantRow struct {
	ID           ids.Device `gorm:"primaryKey"`
	DeviceHash   []byte
	UserCode     string
	Client       string
	Source       string
	State        string
	OrgID        ids.Org
	UserID       ids.User
	SecondFactor bool
	CreatedAt    time.Time
	ExpiresAt    time.Time
	PolledAt     *time.Time
}

func (deviceGrantRow) TableName() string { return "device_grant" }

func newDeviceGrantRow(g tenant.DeviceGrant) deviceGrantRow {
	return deviceGrantRow{
		ID: g.ID, DeviceHash: g.DeviceHash, UserCode: g.UserCode, Client: g.Client, Source: g.Source, State: string(g.State), OrgID: g.Org, UserID: g.User,
		SecondFactor: g.SecondFactor, CreatedAt: g.CreatedAt, ExpiresAt: g.ExpiresAt, PolledAt: nullable(g.PolledAt),
	}
}

func toDeviceGrant(r deviceGrantRow) tenant.DeviceGrant {
	return tenant.DeviceGrant{
		ID: r.ID, DeviceHash: r.DeviceHash, UserCode: r.UserCode, Client: r.Client, Source: r.Source, State: tenant.DeviceState(r.State), Org: r.OrgID,
		User: r.UserID, SecondFactor: r.SecondFactor, CreatedAt: r.CreatedAt.UTC(), ExpiresAt: r.ExpiresAt.UTC(), PolledAt: instant(r.PolledAt),
	}
}

// CreateDeviceGrant implements tenant.DeviceGrants.
func (s *Tenants) CreateDeviceGrant(ctx context.Context, g tenant.DeviceGrant) error {
	row := newDeviceGrantRow(g)
	if err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error }); err != nil {
		return fmt.Errorf("insert device grant: %w", err)
	}
	return nil
}

func (s *Tenants) deviceGrant(ctx context.Context, condition string, value any) (tenant.DeviceGrant, error) {
	var grant tenant.DeviceGrant
	err := s.db.asPlatform(ctx, func(ctx context.Context) (err error) {
		grant, err = takeOne(conn(ctx).Where(condition, value).Clauses(clause.Locking{Strength: "UPDATE"}), toDeviceGrant, "device grant")
		return err
	})
	return grant, err
}

// DeviceGrantByHash implements tenant.DeviceGrants.
func (s *Tenants) DeviceGrantByHash(ctx context.Context, hash []byte) (tenant.DeviceGrant, error) {
	return s.deviceGrant(ctx, "device_hash = ?", hash)
}

// DeviceGrantByCode implements tenant.DeviceGrants.
func (s *Tenants) DeviceGrantByCode(ctx context.Context, code string) (tenant.DeviceGrant, error) {
	return s.deviceGrant(ctx, "user_code = ?", code)
}

// UpdateDeviceGrant implements tenant.DeviceGrants.
func (s *Tenants) UpdateDeviceGrant(ctx context.Context, g tenant.DeviceGrant) error {
	row := newDeviceGrantRow(g)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&deviceGrantRow{}).Where("id = ?", g.ID).Select("state", "org_id", "user_id", "second_factor", "polled_at").Updates(&row).Error
	})
	if err != nil {
		return fmt.Errorf("update device grant: %w", err)
	}
	return nil
}

// ForgetDeviceGrants deletes those that were over before the instant.
func (s *Tenants) ForgetDeviceGrants(ctx context.Context, before time.Time) error {
	_, err := s.run(ctx, "forget device grants", "DELETE FROM device_grant WHERE expires_at < ?", before)
	return err
}

// UserByIdentity implements tenant.Identities; only the platform may.
func (s *Tenants) UserByIdentity(ctx context.Context, issuer, subject string) (tenant.User, error) {
	return takeOne(conn(ctx).Where("id = (SELECT user_id FROM external_identity WHERE issuer = ? AND subject = ?)", issuer, subject), toUser, "user")
}

// AddIdentity implements tenant.Identities.
func (s *Tenants) AddIdentity(ctx context.Context, i tenant.Identity, user ids.User, at time.Time) error {
	_, err := s.run(ctx, "insert identity", "INSERT INTO external_identity (issuer, subject, user_id, created_at) VALUES (?, ?, ?, ?)", i.Issuer, i.Subject, user, at)
	return err
}
