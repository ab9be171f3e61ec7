package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
)

// patient is a healthy database with one reserved lease on one node.
type patient struct {
	*leaseWorld
	allocation lease.Allocation
	part       ids.Partition
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{leaseWorld: newLeaseWorld(t), part: ids.Make[ids.Partition]()}
	p.allocation = p.leaseWorld.allocation()
	p.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, p.allocations.Insert(ctx, p.allocation)) })
	require.Empty(t, p.examine(t), "healthy at first")
	return p
}

func (p *patient) examine(t *testing.T) []doctor.Finding {
	t.Helper()
	found, err := postgres.NewDoctor(p.db).Examine(t.Context())
	require.NoError(t, err)
	return found
}

// copyAllocation adds an allocation like the patient's, past all constraints but those that were not dropped.
func (p *patient) copyAllocation(t *testing.T, state, slots string) ids.Allocation {
	t.Helper()
	id := ids.Make[ids.Allocation]()
	p.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, epoch, created_at, released_at)
		SELECT $1, node_id, purpose, lease_id, $2::int4range, tstzrange(lower(occupied) + interval '30 days', upper(occupied) + interval '30 days'), $3::text, 1,
		       created_at, CASE $3::text WHEN 'released' THEN now() END FROM allocation WHERE id = $4`, id, slots, state, p.allocation.ID)
	return id
}

func (p *patient) addMember(t *testing.T, allocation ids.Allocation, pkey int) {
	t.Helper()
	p.Exec(t, `INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, 'verified', now(), now())`,
		p.part, p.customer.Org, p.Fabric, p.lease, pkey)
	p.Exec(t, `INSERT INTO partition_member (partition_id, hca_port_id, allocation_id, org_id, joined_at) SELECT $1, id, $2, $3, now() FROM hca_port WHERE node_id = $4`,
		p.part, allocation, p.customer.Org, p.node)
}

func TestEveryPlantedBreachIsFound(t *testing.T) {
	t.Parallel()
	for name, breach := range map[string]struct {
		invariant int
		plant     func(t *testing.T, p *patient)
	}{
		"a double sale": {1, func(t *testing.T, p *patient) {
			t.Helper()
			p.Exec(t, "ALTER TABLE allocation DROP CONSTRAINT allocation_no_overlap")
			id := p.copyAllocation(t, "quarantined", "[8,16)")
			p.Exec(t, "UPDATE allocation SET occupied = (SELECT occupied FROM allocation WHERE id = $2) WHERE id = $1", id, p.allocation.ID)
		}},
		"two tenants at once": {1, func(t *testing.T, p *patient) {
			t.Helper()
			p.copyAllocation(t, "cleaning", "[0,64)")
			p.Exec(t, "UPDATE allocation SET state = 'in_use' WHERE id = $1", p.allocation.ID)
		}},
		"slots that the node has not": {2, func(t *testing.T, p *patient) { p.copyAllocation(t, "quarantined", "[64,128)") }},
		"a start that the type has not": {2, func(t *testing.T, p *patient) {
			p.Exec(t, "UPDATE node SET slots = 128 WHERE id = $1", p.node)
			p.copyAllocation(t, "quarantined", "[8,72)")
		}},
		"fewer instances than sold": {2, func(t *testing.T, p *patient) { p.Exec(t, "UPDATE lease SET instances = 2 WHERE id = $1", p.lease) }},
		"a port in two partitions": {2, func(t *testing.T, p *patient) {
			p.addMember(t, p.copyAllocation(t, "quarantined", "[0,64)"), 7)
			p.Exec(t, "DROP INDEX partition_lease")
			p.part = ids.Make[ids.Partition]()
			p.Exec(t, "UPDATE allocation SET state = 'preparing' WHERE id = $1", p.allocation.ID)
			p.addMember(t, p.allocation.ID, 8)
		}},
		"a member without an allocation": {2, func(t *testing.T, p *patient) { p.addMember(t, p.allocation.ID, 7) }},
		"an active lease outside its partition": {2, func(t *testing.T, p *patient) {
			p.Exec(t, "UPDATE lease SET state = 'active' WHERE id = $1", p.lease)
			p.Exec(t, "UPDATE allocation SET state = 'in_use' WHERE id = $1", p.allocation.ID)
		}},
		"a PKey of two partitions": {3, func(t *testing.T, p *patient) {
			p.Exec(t, "DROP INDEX partition_pkey_in_use")
			p.Exec(t, "DROP INDEX partition_lease")
			for range 2 {
				p.Exec(t, `INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at) VALUES ($1, $2, $3, $4, 7, 'clear', now(), now())`,
					ids.Make[ids.Partition](), p.customer.Org, p.Fabric, p.lease)
			}
		}},
		"a foreign PKey": {3, func(t *testing.T, p *patient) {
			p.addMember(t, p.copyAllocation(t, "quarantined", "[0,64)"), 5000)
			p.Exec(t, "UPDATE fabric SET managed_high = 1000")
		}},
		"a transaction that does not sum to zero": {4, func(t *testing.T, p *patient) {
			p.Exec(t, "DROP TRIGGER ledger_tx_balanced ON ledger_entry")
			account, tx := ids.Make[ids.Entry](), ids.Make[ids.LedgerTx]()
			p.Exec(t, "INSERT INTO ledger_account (id, kind, currency) VALUES ($1, 'earned', 'USD')", account)
			p.Exec(t, "INSERT INTO ledger_tx (id, kind, reference, created_at) VALUES ($1, 'adjustment', 'r', now())", tx)
			p.Exec(t, "INSERT INTO ledger_entry (id, tx_id, account_id, currency, amount_minor) VALUES ($1, $2, $3, 'USD', 5)", ids.Make[ids.Entry](), tx, account)
		}},
		"an invoice without its lines": {5, func(t *testing.T, p *patient) {
			p.Exec(t, `INSERT INTO invoice (id, org_id, state, period_start, period_end, currency, subtotal_minor, total_minor, payable_minor, created_at)
				VALUES ($1, $2, 'draft', now(), now(), 'USD', 100, 100, 100, now())`, ids.Make[ids.Invoice](), p.customer.Org)
		}},
		"slots released without a wipe": {7, func(t *testing.T, p *patient) { p.copyAllocation(t, "released", "[0,64)") }},
		"slots released with a bad wipe": {7, func(t *testing.T, p *patient) {
			p.Exec(t, `INSERT INTO wipe_certificate (id, org_id, lease_id, allocation_id, node_id, result, envelope, created_at) VALUES ($1, $2, $3, $4, $5, 'unsupported', '{}', now())`,
				ids.Make[ids.Wipe](), p.customer.Org, p.lease, p.copyAllocation(t, "released", "[0,64)"), p.node)
		}},
		"slots released with their port in the partition": {7, func(t *testing.T, p *patient) {
			p.addMember(t, p.copyAllocation(t, "released", "[0,64)"), 7)
			p.Exec(t, "UPDATE partition_member SET wanted = false")
		}},
		"a quarantined node on the market": {7, func(t *testing.T, p *patient) { p.copyAllocation(t, "quarantined", "[0,64)") }},
		"slots of a lease that is over":    {7, func(t *testing.T, p *patient) { p.Exec(t, "UPDATE lease SET state = 'closed' WHERE id = $1", p.lease) }},
		"a table without row-level security": {8, func(t *testing.T, p *patient) {
			p.Exec(t, "ALTER TABLE quote DISABLE ROW LEVEL SECURITY")
		}},
		"a policy that shows everything": {8, func(t *testing.T, p *patient) {
			p.Exec(t, "DROP POLICY tenant ON quote")
			p.Exec(t, "CREATE POLICY tenant ON quote TO leasehold_tenant USING (true)")
		}},
		"a market table that tenants can read": {8, func(t *testing.T, p *patient) { p.Exec(t, "GRANT SELECT ON allocation TO leasehold_tenant") }},
		"an event of somebody else": {8, func(t *testing.T, p *patient) {
			p.Exec(t, "INSERT INTO lease_event (lease_id, seq, org_id, type, at) VALUES ($1, 99, $2, 'lease.notice', now())", p.lease, p.Customer(t, "Stranger").Org)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			breach.plant(t, p)
			found := p.examine(t)
			require.NotEmpty(t, found)
			var invariants []int
			for _, f := range found {
				require.NotEmpty(t, f.What)
				require.NotEmpty(t, f.Found)
				require.NotEmpty(t, f.Claim)
				invariants = append(invariants, f.Invariant)
			}
			require.Contains(t, invariants, breach.invariant, found)
		})
	}
}

func TestAnAdminsReleaseWithAReasonIsNoBreach(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	id := p.copyAllocation(t, "released", "[0,64)")
	require.NotEmpty(t, p.examine(t))
	p.Exec(t, "UPDATE allocation SET reason = 'wiped by hand on ' || $2::text WHERE id = $1", id, time.Now().String())
	require.Empty(t, p.examine(t))
}
