package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	store "github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// What an instance occupies beside its window.
const (
	lead       = 10 * time.Minute
	turnaround = 15 * time.Minute
)

// nodeID is the id of a kind's i-th node, in SQL: known beforehand, so that a script can name nodes.
func nodeID(kind, i string) string {
	return "('00000000-0000-7000-8000-' || lpad(to_hex((" + kind + ") * 1000000 + (" + i + ")), 12, '0'))::uuid"
}

func typeName(kind int) string { return "bench-" + strconv.Itoa(kind) }

// seedMarket makes a customer with a project, and a site with so many nodes of eight GPUs of each kind, behind leaves of 32, each kind
// sold as a type of its own: typeName(0), typeName(1) and so on.
func seedMarket(ctx context.Context, pool *pgxpool.Pool, nodes ...int) (tenant.Actor, error) {
	org, site, fabric := ids.Make[ids.Org](), ids.Make[ids.Site](), ids.Make[ids.Fabric]()
	type statement struct {
		sql  string
		args []any
	}
	all := []statement{
		{`INSERT INTO organization (id, name, kind, created_at) VALUES ($1, 'bench', 'customer', now())`, []any{org}},
		{`INSERT INTO project (id, org_id, name, created_at) VALUES (gen_random_uuid(), $1, 'default', now())`, []any{org}},
		{`INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, 'bench', 'x', 'DE', now())`, []any{site, org}},
		{`INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib0', now())`, []any{fabric, site}},
	}
	for kind, count := range nodes {
		all = append(all,
			statement{`INSERT INTO switch (id, fabric_id, guid, name, level, ports)
				SELECT gen_random_uuid(), $1, '0x' || lpad(to_hex($3::int * 1000000 + i), 16, '0'), 'leaf-' || $3::int || '-' || i, 1, 64
				FROM generate_series(0, ($2::int - 1) / 32) i`, []any{fabric, count, kind}},
			statement{`INSERT INTO node (id, site_id, fabric_id, name, hardware, mode, state, slots, pod, leaf_id, created_at)
				SELECT ` + nodeID("$4::int", "i") + `, $1, $2, 'n-' || $4::int || '-' || i, 'hw-' || $4::int, 'bare_metal', 'available', 64, 'pod-' || (i / 256),
					(SELECT id FROM switch WHERE name = 'leaf-' || $4::int || '-' || (i / 32)), now()
				FROM generate_series(0, $3::int - 1) i`, []any{site, fabric, count, kind}},
			statement{
				`INSERT INTO instance_type (id, name, title, hardware, mode, slot_width, slot_stride, gpu_count, with_hca, gpu_model, gpu_memory_bytes,
					rated_per, lead_seconds, turnaround_seconds, created_at)
				VALUES (gen_random_uuid(), $1, 'x', 'hw-' || $2::int, 'bare_metal', 64, 64, 8, true, 'X', 1, 'gpu', $3, $4, now())`,
				[]any{typeName(kind), kind, int(lead.Seconds()), int(turnaround.Seconds())},
			},
		)
	}
	all = append(all,
		statement{`INSERT INTO price_version (id, instance_type_id, site_id, currency, rate_micros, valid, min_duration_seconds, max_duration_seconds, created_at)
			SELECT gen_random_uuid(), id, $1, 'USD', 2490000, '[2020-01-01,)', 60, 31536000, now() FROM instance_type`, []any{site}},
		statement{"ANALYZE", nil})
	for _, s := range all {
		if _, err := pool.Exec(ctx, s.sql, s.args...); err != nil {
			return tenant.Actor{}, fmt.Errorf("%.60s: %w", s.sql, err)
		}
	}
	return tenant.Actor{Org: org, OrgKind: tenant.Customer, Role: tenant.Owner}, nil
}

// customer is an organization of its own with all that a booking needs.
type customer struct {
	org     ids.Org
	project ids.Project
	user    ids.User
	sshKey  ids.SSHKey
	keyID   ids.APIKey
	key     string      // the API key itself
	account [2][16]byte // cash, held
}

// seedCustomers makes customers with money, through the domain where it has secrets and books.
func seedCustomers(ctx context.Context, url string, pool *pgxpool.Pool, count int) ([]customer, error) {
	db, err := store.Open(ctx, url, 4)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // its commits have been answered
	clk := clock.System{}
	tenants, err := tenant.New(db, store.NewTenants(db), nil, audit.New(store.NewAuditEvents(db), clk), clk, tenant.Options{Environment: environment})
	if err != nil {
		return nil, err
	}
	books := ledger.New(db, store.NewLedger(db), clk)
	all := make([]customer, count)
	for i := range all {
		if all[i], err = seedCustomer(ctx, pool, tenants, books); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func seedCustomer(ctx context.Context, pool *pgxpool.Pool, tenants *tenant.Service, books *ledger.Service) (customer, error) {
	c := customer{org: ids.Make[ids.Org](), project: ids.Make[ids.Project](), user: ids.Make[ids.User](), sshKey: ids.Make[ids.SSHKey]()}
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO organization (id, name, kind, created_at) VALUES ($1, $2, 'customer', now())`, []any{c.org, c.org.String()}},
		{`INSERT INTO project (id, org_id, name, created_at) VALUES ($1, $2, 'default', now())`, []any{c.project, c.org}},
		{`INSERT INTO app_user (id, email, password_hash, created_at) VALUES ($1, $2, '-', now())`, []any{c.user, c.user.String() + "@example.com"}},
		{`INSERT INTO membership (org_id, user_id, role, created_at) VALUES ($1, $2, 'owner', now())`, []any{c.org, c.user}},
		{
			`INSERT INTO ssh_key (id, org_id, user_id, name, public_key, fingerprint, created_at) VALUES ($1, $2, $3, 'laptop', 'ssh-ed25519 AAAA', $4, now())`,
			[]any{c.sshKey, c.org, c.user, fmt.Sprintf("SHA256:%x", sha256.Sum256([]byte(c.sshKey.String())))},
		},
	} {
		if _, err := pool.Exec(ctx, s.sql, s.args...); err != nil {
			return c, fmt.Errorf("%.40s: %w", s.sql, err)
		}
	}
	actor := tenant.Actor{Org: c.org, OrgKind: tenant.Customer, User: c.user, Role: tenant.Owner}
	made, secret, err := tenants.CreateAPIKey(tenant.WithActor(ctx, actor), tenant.APIKeyInput{Name: "bench", Scopes: []string{tenant.LeasesRead, tenant.LeasesWrite, tenant.MarketRead}})
	if err != nil {
		return c, err
	}
	c.keyID, c.key = made.ID, secret
	if err := books.TopUp(ctx, c.org, ids.Make[ids.Payment](), money.Of(1_000_000_000_00, "USD"), "bench"); err != nil {
		return c, err
	}
	for i, kind := range []string{"cash", "held"} {
		if err := pool.QueryRow(ctx, `SELECT id FROM ledger_account WHERE org_id = $1 AND kind = $2`, c.org, kind).Scan(&c.account[i]); err != nil {
			return c, fmt.Errorf("find %s account: %w", kind, err)
		}
	}
	return c, nil
}
