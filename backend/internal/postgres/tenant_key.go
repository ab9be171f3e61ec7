package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type apiKeyRow struct {
	ID         ids.APIKey `gorm:"primaryKey"`
	OrgID      ids.Org
	ProjectID  ids.Project
	Name       string
	SecretHash []byte
	Scopes     textArray
	CreatedBy  ids.User
	CreatedAt  time.Time
	ExpiresAt  *time.Time
	LastUsedAt *time.Time
	RevokedAt  *time.Time

	ServiceAccountID ids.Service
	Networks         textArray
	PreviousHash     []byte
	PreviousUntil    *time.Time
}

func (apiKeyRow) TableName() string { return "api_key" }

func toAPIKey(r apiKeyRow) tenant.APIKey {
	networks := make([]netip.Prefix, 0, len(r.Networks))
	for _, text := range r.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil { // not ours: a network that nobody comes from keeps the key shut
			network = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
		}
		networks = append(networks, network)
	}
	return tenant.APIKey{
		Service: r.ServiceAccountID, Networks: networks, PreviousHash: r.PreviousHash, PreviousUntil: instant(r.PreviousUntil),
		ID: r.ID, Org: r.OrgID, Project: r.ProjectID, Name: r.Name, SecretHash: r.SecretHash, Scopes: r.Scopes, CreatedBy: r.CreatedBy,
		CreatedAt: r.CreatedAt.UTC(), ExpiresAt: instant(r.ExpiresAt), LastUsedAt: instant(r.LastUsedAt), RevokedAt: instant(r.RevokedAt),
	}
}

// CreateAPIKey implements tenant.APIKeys.
func (s *Tenants) CreateAPIKey(ctx context.Context, k tenant.APIKey) error {
	row := apiKeyRow{
		ID: k.ID, OrgID: k.Org, ProjectID: k.Project, Name: k.Name, SecretHash: k.SecretHash, Scopes: k.Scopes, CreatedBy: k.CreatedBy,
		CreatedAt: k.CreatedAt, ExpiresAt: nullable(k.ExpiresAt), LastUsedAt: nullable(k.LastUsedAt), RevokedAt: nullable(k.RevokedAt),
		ServiceAccountID: k.Service, Networks: each(k.Networks, netip.Prefix.String),
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert API key: %w", err)
	}
	return nil
}

// APIKey implements tenant.APIKeys.
func (s *Tenants) APIKey(ctx context.Context, id ids.APIKey) (tenant.APIKey, error) {
	return takeOne(conn(ctx).Where("id = ?", id), toAPIKey, "API key")
}

// APIKeys implements tenant.APIKeys.
func (s *Tenants) APIKeys(ctx context.Context, org ids.Org, project ids.Project, page tenant.Page[ids.APIKey]) ([]tenant.APIKey, error) {
	find := conn(ctx).Where("org_id = ?", org).Order("created_at DESC, id DESC")
	if !project.IsZero() {
		find = find.Where("project_id = ?", project)
	}
	if !page.After.IsZero() {
		find = find.Where("(created_at, id) < (SELECT created_at, id FROM api_key WHERE id = ?)", page.After)
	}
	var rows []apiKeyRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return each(rows, toAPIKey), nil
}

// credentialQuery finds a key with its maker's present role: the whole organization's before that of the key's own project, then the strongest.
// A service account's key has the account's role.
//
//nolint:gosec // a query for credentials, none itself
const credentialQuery = `
	SELECT * FROM (
	SELECT k.*, o.kind AS org_kind, m.role, NULL::timestamptz AS account_expires_at, NULL::timestamptz AS account_disabled_at, m.project_id IS NOT NULL AS narrow
	FROM api_key k
	JOIN organization o ON o.id = k.org_id
	JOIN app_user u ON u.id = k.created_by AND u.disabled_at IS NULL
	JOIN standing m ON m.org_id = k.org_id AND m.user_id = k.created_by AND (m.project_id IS NULL OR m.project_id = k.project_id)
	WHERE k.id = @id AND k.service_account_id IS NULL
	UNION ALL
	SELECT k.*, o.kind, a.role, a.expires_at, a.disabled_at, false
	FROM api_key k
	JOIN organization o ON o.id = k.org_id
	JOIN service_account a ON a.id = k.service_account_id AND a.deleted_at IS NULL
	WHERE k.id = @id) c
	ORDER BY narrow, array_position(ARRAY['owner', 'admin', 'member', 'billing', 'viewer'], role)
	LIMIT 1`

type credentialRow struct {
	Key               apiKeyRow `gorm:"embedded"`
	OrgKind           string
	Role              string
	AccountExpiresAt  *time.Time
	AccountDisabledAt *time.Time
}

// Credential implements tenant.APIKeys; only the platform may.
func (s *Tenants) Credential(ctx context.Context, id ids.APIKey) (tenant.Credential, error) {
	var rows []credentialRow
	if err := conn(ctx).Raw(credentialQuery, map[string]any{"id": id}).Scan(&rows).Error; err != nil {
		return tenant.Credential{}, fmt.Errorf("read credential: %w", err)
	}
	if len(rows) == 0 {
		return tenant.Credential{}, fault.New(fault.NotFound, "not-found", "there is no such API key")
	}
	r := rows[0]
	return tenant.Credential{
		Key: toAPIKey(r.Key), OrgKind: tenant.OrgKind(r.OrgKind), Role: tenant.Role(r.Role),
		Service: tenant.ServiceAccount{ID: r.Key.ServiceAccountID, ExpiresAt: instant(r.AccountExpiresAt), DisabledAt: instant(r.AccountDisabledAt)},
	}, nil
}

// RotateAPIKey implements tenant.APIKeys.
func (s *Tenants) RotateAPIKey(ctx context.Context, k tenant.APIKey) error {
	row := apiKeyRow{SecretHash: k.SecretHash, PreviousHash: k.PreviousHash, PreviousUntil: nullable(k.PreviousUntil)}
	if err := conn(ctx).Model(&apiKeyRow{}).Where("id = ?", k.ID).Select("secret_hash", "previous_hash", "previous_until").Updates(&row).Error; err != nil {
		return fmt.Errorf("rotate API key: %w", err)
	}
	return nil
}

// RevokeAPIKey implements tenant.APIKeys.
func (s *Tenants) RevokeAPIKey(ctx context.Context, id ids.APIKey, at time.Time) error {
	if err := conn(ctx).Model(&apiKeyRow{}).Where("id = ? AND revoked_at IS NULL", id).Update("revoked_at", at).Error; err != nil {
		return fmt.Errorf("revoke API key: %w", err)
	}
	return nil
}

// TouchAPIKey implements tenant.APIKeys; only the platform may.
func (s *Tenants) TouchAPIKey(ctx context.Context, id ids.APIKey, at time.Time) error {
	err := conn(ctx).Model(&apiKeyRow{}).Where("id = ? AND (last_used_at IS NULL OR last_used_at < ?)", id, at).Update("last_used_at", at).Error
	if err != nil {
		return fmt.Errorf("touch API key: %w", err)
	}
	return nil
}

type sshKeyRow struct {
	ID          ids.SSHKey `gorm:"primaryKey"`
	OrgID       ids.Org
	UserID      ids.User
	Name        string
	PublicKey   string
	Fingerprint string
	CreatedAt   time.Time
}

func (sshKeyRow) TableName() string { return "ssh_key" }

func toSSHKey(r sshKeyRow) tenant.SSHKey {
	return tenant.SSHKey{
		ID: r.ID, Org: r.OrgID, User: r.UserID, Name: r.Name, PublicKey: r.PublicKey, Fingerprint: r.Fingerprint, CreatedAt: r.CreatedAt.UTC(),
	}
}

// CreateSSHKey implements tenant.SSHKeys.
func (s *Tenants) CreateSSHKey(ctx context.Context, k tenant.SSHKey) error {
	row := sshKeyRow{ID: k.ID, OrgID: k.Org, UserID: k.User, Name: k.Name, PublicKey: k.PublicKey, Fingerprint: k.Fingerprint, CreatedAt: k.CreatedAt}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return duplicate(err, "ssh-key-exists", "the organization has this SSH key already")
	}
	return nil
}

// SSHKeysByID implements tenant.SSHKeys.
func (s *Tenants) SSHKeysByID(ctx context.Context, org ids.Org, keys []ids.SSHKey) ([]tenant.SSHKey, error) {
	var rows []sshKeyRow
	err := conn(ctx).Where("org_id = ?", org).Where(clause.IN{Column: "id", Values: anySlice(keys)}).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read SSH keys: %w", err)
	}
	return each(rows, toSSHKey), nil
}

// SSHKeys implements tenant.SSHKeys.
func (s *Tenants) SSHKeys(ctx context.Context, org ids.Org, page tenant.Page[ids.SSHKey]) ([]tenant.SSHKey, error) {
	find := conn(ctx).Where("org_id = ?", org).Order("created_at DESC, id DESC")
	if !page.After.IsZero() {
		find = find.Where("(created_at, id) < (SELECT created_at, id FROM ssh_key WHERE id = ?)", page.After)
	}
	var rows []sshKeyRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list SSH keys: %w", err)
	}
	return each(rows, toSSHKey), nil
}

// DeleteSSHKey implements tenant.SSHKeys.
func (s *Tenants) DeleteSSHKey(ctx context.Context, id ids.SSHKey) error {
	done := conn(ctx).Where("id = ?", id).Delete(&sshKeyRow{})
	if done.Error != nil {
		return fmt.Errorf("delete SSH key: %w", done.Error)
	}
	if done.RowsAffected == 0 {
		return fault.New(fault.NotFound, "not-found", "there is no such SSH key")
	}
	return nil
}
