package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/leasehold/leasehold/backend/doctor"
)

// Doctor looks for breaches of the domain's invariants.
type Doctor struct {
	*LeaseWork
	db *DB
}

// NewDoctor returns the doctor of db.
func NewDoctor(db *DB) *Doctor { return &Doctor{LeaseWork: NewLeaseWork(db), db: db} }

// check is a query for what breaks a claim: where, and what is there instead.
type check struct {
	invariant  int
	claim, sql string
}

// Examine implements doctor.Rows. Each claim is one query, and so sees one snapshot of the database.
func (d *Doctor) Examine(ctx context.Context) ([]doctor.Finding, error) {
	findings := []doctor.Finding{}
	err := d.db.asPlatform(ctx, func(ctx context.Context) error {
		for _, c := range checks() {
			var found []doctor.Finding
			if err := conn(ctx).Raw(c.sql + " LIMIT 100").Scan(&found).Error; err != nil {
				return fmt.Errorf("check that %s: %w", c.claim, err)
			}
			for _, f := range found {
				f.Invariant, f.Claim = c.invariant, c.claim
				findings = append(findings, f)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("examine: %w", err)
	}
	return findings, nil
}

func checks() []check {
	all := append(capacityChecks(), isolationChecks()...)
	for _, c := range moneyChecks() {
		invariant := 4
		if strings.Contains(c.claim, "charge") || strings.Contains(c.claim, "invoice") {
			invariant = 5
		}
		all = append(all, check{invariant, c.claim, c.sql})
	}
	return append(all, tenancyChecks()...)
}

func capacityChecks() []check {
	return []check{
		{1, "no two live allocations overlap", `
			SELECT a.id || ' and ' || b.id AS what, 'both have ' || (a.slots * b.slots) || ' of ' || n.name || ' in ' || (a.occupied * b.occupied) AS found
			FROM allocation a JOIN allocation b ON b.node_id = a.node_id AND b.id > a.id AND b.slots && a.slots AND b.occupied && a.occupied
			JOIN node n ON n.id = a.node_id
			WHERE a.released_at IS NULL AND b.released_at IS NULL`},
		{1, "slots are never with two tenants at once", `
			SELECT a.id || ' and ' || b.id AS what, 'are ' || a.state || ' and ' || b.state || ' on ' || n.name AS found
			FROM allocation a JOIN allocation b ON b.node_id = a.node_id AND b.id > a.id AND b.slots && a.slots
			JOIN node n ON n.id = a.node_id
			WHERE a.state IN ('preparing', 'in_use', 'cleaning') AND b.state IN ('preparing', 'in_use', 'cleaning')`},
		{2, "live allocations lie within their node", `
			SELECT a.id::text AS what, a.slots || ' of ' || n.slots || ' slots' AS found
			FROM allocation a JOIN node n ON n.id = a.node_id
			WHERE a.released_at IS NULL AND (isempty(a.slots) OR isempty(a.occupied) OR lower(a.slots) < 0 OR upper(a.slots) > n.slots)`},
		{2, "live allocations have their type's width, at one of its starts", `
			SELECT a.id::text AS what, a.slots || ' for ' || t.name AS found
			FROM allocation a JOIN lease l ON l.id = a.lease_id JOIN instance_type t ON t.id = l.instance_type_id
			WHERE a.released_at IS NULL
			  AND (upper(a.slots) - lower(a.slots) <> t.slot_width
			       OR CASE WHEN t.slot_stride > 0 THEN lower(a.slots) % t.slot_stride <> 0 ELSE lower(a.slots) % 8 <> ALL (t.bay_starts) END)`},
		{2, "a lease under way has as many instances as were sold", `
			SELECT l.id::text AS what, count(a.id) || ' of ' || l.instances AS found
			FROM lease l LEFT JOIN allocation a ON a.lease_id = l.id AND a.state IN ('held', 'preparing', 'in_use')
			WHERE l.state IN ('reserved', 'active') GROUP BY l.id HAVING count(a.id) <> l.instances`},
	}
}

func isolationChecks() []check {
	return []check{
		{2, "a port is a member of one partition at most", `
			SELECT p.guid AS what, 'it is in ' || string_agg(to_hex(x.pkey), ', ') AS found
			FROM partition_member m JOIN partition x ON x.id = m.partition_id JOIN hca_port p ON p.id = m.hca_port_id
			WHERE m.wanted AND m.left_at IS NULL AND x.state <> 'free' GROUP BY p.id HAVING count(*) > 1`},
		{2, "ports are members for live allocations only", `
			SELECT p.guid || ' in ' || to_hex(x.pkey) AS what, 'its allocation is ' || a.state AS found
			FROM partition_member m JOIN partition x ON x.id = m.partition_id JOIN hca_port p ON p.id = m.hca_port_id
			JOIN allocation a ON a.id = m.allocation_id
			WHERE m.wanted AND m.left_at IS NULL AND a.state IN ('held', 'released')`},
		{2, "every port of an active lease is in its partition", `
			SELECT p.guid || ' of ' || l.id AS what, 'it is not a verified member' AS found
			FROM lease l JOIN allocation a ON a.lease_id = l.id AND a.state = 'in_use' JOIN node n ON n.id = a.node_id
			JOIN hca_port p ON p.node_id = a.node_id AND p.fabric_id = l.fabric_id
			  AND (p.bay >= lower(a.slots) / 8 AND p.bay < (upper(a.slots) + 7) / 8 OR p.bay IS NULL AND lower(a.slots) = 0 AND upper(a.slots) = n.slots)
			WHERE l.state = 'active' AND NOT EXISTS (
			  SELECT FROM partition_member m JOIN partition x ON x.id = m.partition_id
			  WHERE m.hca_port_id = p.id AND x.lease_id = l.id AND m.joined_at IS NOT NULL AND m.left_at IS NULL)`},
		{3, "a PKey means one partition on its fabric", `
			SELECT to_hex(pkey) || ' on ' || fabric_id AS what, count(*) || ' partitions' AS found
			FROM partition WHERE state <> 'free' GROUP BY fabric_id, pkey HAVING count(*) > 1`},
		{3, "a PKey is inside its fabric's managed range", `
			SELECT to_hex(x.pkey) || ' on ' || f.name AS what, 'managed are ' || to_hex(f.managed_low) || ' to ' || to_hex(f.managed_high) AS found
			FROM partition x JOIN fabric f ON f.id = x.fabric_id WHERE x.state <> 'free' AND x.pkey NOT BETWEEN f.managed_low AND f.managed_high`},
		{7, "slots that a tenant had are released after a verified wipe only", `
			SELECT a.id::text AS what, 'released without a certificate of a clean wipe' AS found
			FROM allocation a
			WHERE a.purpose = 'lease' AND a.state = 'released' AND a.epoch > 0 AND (a.reason = '' OR a.replaced_by IS NOT NULL)
			  AND NOT EXISTS (SELECT FROM wipe_certificate w WHERE w.allocation_id = a.id AND w.result = 'wiped')`},
		{7, "ports are seen clear before their slots are released", `
			SELECT p.guid || ' in ' || to_hex(x.pkey) AS what, 'released, and not seen clear' AS found
			FROM partition_member m JOIN partition x ON x.id = m.partition_id JOIN hca_port p ON p.id = m.hca_port_id
			JOIN allocation a ON a.id = m.allocation_id
			WHERE m.joined_at IS NOT NULL AND m.left_at IS NULL AND a.state = 'released' AND (a.reason = '' OR a.replaced_by IS NOT NULL)`},
		{7, "a node whose every slot is quarantined is not on the market", `
			SELECT n.name AS what, 'available, with quarantined ' || a.id AS found
			FROM node n JOIN allocation a ON a.node_id = n.id
			WHERE n.state = 'available' AND a.state = 'quarantined' AND lower(a.slots) = 0 AND upper(a.slots) = n.slots`},
		{7, "what a lease that is over had is released, quarantined, or cleaned again while its node is tested", `
			SELECT a.id || ' of ' || l.id AS what, 'the lease is ' || l.state || ', it is ' || a.state || ' and its node ' || n.state AS found
			FROM allocation a JOIN lease l ON l.id = a.lease_id JOIN node n ON n.id = a.node_id
			WHERE l.state IN ('closed', 'cancelled') AND a.state NOT IN ('released', 'quarantined') AND NOT (a.state = 'cleaning' AND n.state = 'verifying')`},
	}
}

// tenancyChecks are about the database itself: they hold for every row because they hold for the tables.
func tenancyChecks() []check {
	return []check{
		{8, "every table of the tenants' has row-level security with their policy", `
			SELECT c.relname AS what, CASE WHEN NOT c.relrowsecurity THEN 'row-level security is off' ELSE 'no policy keeps to the organization' END AS found
			FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'public'
			JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = 'org_id' AND NOT t.attisdropped
			WHERE c.relkind IN ('r', 'p') AND (NOT c.relrowsecurity OR NOT EXISTS (
			  SELECT FROM pg_policies p WHERE p.schemaname = 'public' AND p.tablename = c.relname AND 'leasehold_tenant' = ANY (p.roles) AND p.qual LIKE '%current_org()%'))
			  AND has_table_privilege('leasehold_tenant', c.oid, 'SELECT')`},
		{8, "the tenants' role cannot see the market's tables", `
			SELECT c.relname AS what, 'it may read or write it' AS found
			FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'public'
			WHERE c.relkind IN ('r', 'p') AND NOT c.relrowsecurity AND has_table_privilege('leasehold_tenant', c.oid, 'SELECT, INSERT, UPDATE, DELETE')`},
		{8, "the roles of requests do not bypass row-level security", `
			SELECT rolname AS what, 'it is a superuser or bypasses row-level security' AS found
			FROM pg_roles WHERE rolname IN ('leasehold_tenant', 'leasehold_platform') AND (rolsuper OR rolbypassrls)`},
		{8, "what belongs to a lease belongs to its organization", `
			SELECT x.what || ' of ' || l.id AS what, 'it is ' || x.org_id || '''s, the lease ' || l.org_id || '''s' AS found
			FROM lease l JOIN (
			  SELECT 'event' AS what, lease_id, org_id FROM lease_event UNION ALL
			  SELECT 'segment', lease_id, org_id FROM lease_segment UNION ALL
			  SELECT 'key', lease_id, org_id FROM lease_ssh_key UNION ALL
			  SELECT 'partition', lease_id, org_id FROM partition UNION ALL
			  SELECT 'attestation', lease_id, org_id FROM attestation UNION ALL
			  SELECT 'wipe certificate', lease_id, org_id FROM wipe_certificate UNION ALL
			  SELECT 'usage', lease_id, org_id FROM usage_interval UNION ALL
			  SELECT 'charge', lease_id, org_id FROM charge_line UNION ALL
			  SELECT 'hold', lease_id, org_id FROM hold
			) x ON x.lease_id = l.id AND x.org_id <> l.org_id`},
	}
}
