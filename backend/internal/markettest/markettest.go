// Package markettest fills a test's database with a small market: an organization with money's worth of identity, a site with
// nodes, and what is sold on them, so that a test can begin at its own claim.
package markettest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/pgtest"
)

// Customer is an organization that can book.
type Customer struct {
	Org     ids.Org
	Project ids.Project
	User    ids.User
	Key     ids.SSHKey
}

// Market is what the test's database holds.
type Market struct {
	Pool     *pgxpool.Pool // an administrator's, past row-level security
	URL      string
	Provider ids.Org
	Site     ids.Site
	Fabric   ids.Fabric
}

// New fills a new database with a provider, a site and a fabric.
func New(t testing.TB) *Market {
	t.Helper()
	db := pgtest.New(t)
	m := &Market{Pool: db.Pool(t), URL: db.URL, Provider: ids.Make[ids.Org](), Site: ids.Make[ids.Site](), Fabric: ids.Make[ids.Fabric]()}
	m.Exec(t, `INSERT INTO organization (id, name, kind, created_at) VALUES ($1, 'Provider', 'provider', now())`, m.Provider)
	m.Exec(t, `INSERT INTO site (id, provider_org_id, name, region, country, auto_accept, created_at) VALUES ($1, $2, 'test-site', 'test', 'DE', true, now())`,
		m.Site, m.Provider)
	m.Exec(t, `INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib0', now())`, m.Fabric, m.Site)
	return m
}

// Exec runs a statement as the administrator.
func (m *Market) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := m.Pool.Exec(context.WithoutCancel(t.Context()), sql, args...)
	require.NoError(t, err, sql)
}

// Customer adds an organization with a project, a user and an SSH key.
func (m *Market) Customer(t testing.TB, name string) Customer {
	t.Helper()
	c := Customer{Org: ids.Make[ids.Org](), Project: ids.Make[ids.Project](), User: ids.Make[ids.User](), Key: ids.Make[ids.SSHKey]()}
	m.Exec(t, `INSERT INTO organization (id, name, kind, created_at) VALUES ($1, $2, 'customer', now())`, c.Org, name)
	m.Exec(t, `INSERT INTO project (id, org_id, name, created_at) VALUES ($1, $2, 'default', now())`, c.Project, c.Org)
	m.Exec(t, `INSERT INTO app_user (id, email, password_hash, created_at) VALUES ($1, $2, '-', now())`, c.User, c.User.String()+"@example.com")
	m.Exec(t, `INSERT INTO ssh_key (id, org_id, user_id, name, public_key, fingerprint, created_at)
		VALUES ($1, $2, $3, 'laptop', 'ssh-ed25519 AAAA', $4, now())`, c.Key, c.Org, c.User, "SHA256:"+c.Key.String())
	return c
}

// Nodes adds available nodes of eight bays, named prefix-0, prefix-1, …, in groups of perLeaf behind one leaf switch.
func (m *Market) Nodes(t testing.TB, prefix, hardware, mode string, count, perLeaf int) []ids.Node {
	t.Helper()
	nodes := make([]ids.Node, count)
	var leaf ids.Switch
	for i := range nodes {
		nodes[i] = ids.Make[ids.Node]()
		if i%perLeaf == 0 {
			leaf = ids.Make[ids.Switch]()
			m.Exec(t, `INSERT INTO switch (id, fabric_id, guid, name, level, ports, pod) VALUES ($1, $2, $3, $4, 1, 40, $5)`,
				leaf, m.Fabric, guid(leaf.UUID()), fmt.Sprintf("%s-leaf-%d", prefix, i/perLeaf), fmt.Sprintf("pod-%d", i/perLeaf/2))
		}
		m.Exec(t, `INSERT INTO node (id, site_id, fabric_id, name, hardware, mode, state, slots, leaf_id, pod, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'available', 64, $7, $8, now())`,
			nodes[i], m.Site, m.Fabric, fmt.Sprintf("%s-%d", prefix, i), hardware, mode, leaf, fmt.Sprintf("pod-%d", i/perLeaf/2))
		port := ids.Make[ids.HCAPort]()
		m.Exec(t, `INSERT INTO hca_port (id, node_id, fabric_id, bay, device, port, node_guid, guid, rate_gbps, switch_id, switch_port)
			VALUES ($1, $2, $3, 0, 'mlx5_0', 1, $4, $4, 400, $5, $6)`, port, nodes[i], m.Fabric, guid(port.UUID()), leaf, i%perLeaf+1)
	}
	return nodes
}

func guid(uuid [16]byte) string { return fmt.Sprintf("0x%x", uuid[8:]) }

// InstanceType adds a type that is sold at the site for $2.49 an hour and GPU, refundable in full until a day before its start.
func (m *Market) InstanceType(t testing.TB, name, hardware, mode string, gpus int) ids.Instance {
	t.Helper()
	id := ids.Make[ids.Instance]()
	m.Exec(t, `INSERT INTO instance_type (id, name, title, hardware, mode, slot_width, slot_stride, gpu_count, with_hca, gpu_model, gpu_memory_bytes,
			rated_per, lead_seconds, turnaround_seconds, image, created_at)
		VALUES ($1, $2, $2, $3, $4, $5, $5, $6, true, 'H100', 85899345920, 'gpu', 600, 900, 'ubuntu', now())`, id, name, hardware, mode, gpus*8, gpus)
	m.Exec(t, `INSERT INTO price_version (id, instance_type_id, site_id, currency, rate_micros, valid, min_duration_seconds, max_duration_seconds,
			notice_seconds, refund_schedule, early_refund_bps, created_at)
		VALUES ($1, $2, $3, 'USD', 2490000, '[2020-01-01,)', 60, 15552000, 0,
			'[{"notice_seconds": 86400, "refund_bps": 10000}, {"notice_seconds": 0, "refund_bps": 5000}]', 5000, now())`, ids.Make[ids.Price](), id, m.Site)
	return id
}

// Lease adds a reserved lease of one instance with its quote, first segment and key, as if it had been booked; it holds no
// capacity and no money.
func (m *Market) Lease(t testing.TB, c Customer, instanceType ids.Instance, start, end time.Time) ids.Lease {
	t.Helper()
	quote, id := ids.Make[ids.Quote](), ids.Make[ids.Lease]()
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, pgx.BeginFunc(ctx, m.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO quote (id, org_id, project_id, instance_type_id, site_id, price_version_id, class, instances, start_at, end_at, currency,
				rate_micros, tax_rate_bps, subtotal_minor, tax_minor, total_minor, terms, terms_digest, placement, expires_at, lease_id, created_by, created_at)
			SELECT $1, $2, $3, $4, site_id, id, 'reserved', 1, $5, $6, 'USD', rate_micros, 0, 100, 0, 100, '{}', '', '{}', $6, $7, 'test', now()
			FROM price_version WHERE instance_type_id = $4`, quote, c.Org, c.Project, instanceType, start, end, id)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO lease (id, org_id, project_id, name, quote_id, instance_type_id, site_id, fabric_id, class, instances, start_at, end_at,
				state, currency, created_by, created_at)
			VALUES ($1, $2, $3, 'train', $4, $5, $6, $7, 'reserved', 1, $8, $9, 'reserved', 'USD', 'test', now())`,
			id, c.Org, c.Project, quote, instanceType, m.Site, m.Fabric, start, end)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO lease_segment (lease_id, seq, org_id, start_at, end_at, price_version_id, rate_micros, tax_rate_bps, terms, created_at)
			SELECT $1, 1, $2, $3, $4, id, rate_micros, 0, $6, now() FROM price_version WHERE instance_type_id = $5`,
			id, c.Org, start, end, instanceType, `{"rated_per": "gpu", "units_per_instance": 8}`)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO lease_ssh_key (lease_id, ssh_key_id, org_id, name, public_key) VALUES ($1, $2, $3, 'laptop', 'ssh-ed25519 AAAA')`,
			id, c.Key, c.Org)
		return err
	}))
	return id
}
