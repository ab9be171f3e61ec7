package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
)

// warehouse is a market whose inventory a property test draws anew, again and again.
type warehouse struct {
	*markettest.Market
	sites   []ids.Site
	fabrics []ids.Fabric
	leaves  []ids.Switch
	lease   ids.Lease
	now     time.Time
}

func newWarehouse(t *testing.T) *warehouse {
	t.Helper()
	w := &warehouse{Market: markettest.New(t), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	w.sites, w.fabrics = []ids.Site{w.Site, ids.Make[ids.Site]()}, []ids.Fabric{w.Fabric, ids.Make[ids.Fabric](), ids.Make[ids.Fabric]()}
	w.Exec(t, `INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, 'other', 'test', 'DE', now())`, w.sites[1], w.Provider)
	w.Exec(t, `INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib1', now()), ($3, $4, 'ib0', now())`, w.fabrics[1], w.sites[0], w.fabrics[2], w.sites[1])
	for i := range 6 {
		leaf := ids.Make[ids.Switch]()
		w.leaves = append(w.leaves, leaf)
		w.Exec(t, `INSERT INTO switch (id, fabric_id, guid, name, level, ports) VALUES ($1, $2, $3, $4, 1, 40)`, leaf, w.fabrics[i%3], fmt.Sprintf("0x%016x", i+1), fmt.Sprint("leaf-", i))
	}
	c := w.Customer(t, "tenant")
	w.lease = w.Lease(t, c, w.InstanceType(t, "any", "other", "bare_metal", 8), w.now, w.now.Add(time.Hour))
	return w
}

// draw replaces the inventory. It returns the nodes.
func (w *warehouse) draw(t *rapid.T, ctx context.Context) []ids.Node { //nolint:revive // rapid's T comes first
	exec := func(sql string, args ...any) {
		_, err := w.Pool.Exec(ctx, sql, args...)
		require.NoError(t, err, sql)
	}
	exec(`TRUNCATE node, node_condition, node_liveness, allocation CASCADE`)
	for _, f := range w.fabrics {
		exec(`UPDATE fabric SET spares = $2 WHERE id = $1`, f, rapid.IntRange(0, 2).Draw(t, "spares"))
	}
	nodes := make([]ids.Node, rapid.IntRange(0, 12).Draw(t, "nodes"))
	batch := &pgx.Batch{}
	for i := range nodes {
		nodes[i] = ids.Make[ids.Node]()
		at := rapid.IntRange(0, 5).Draw(t, "leaf")
		batch.Queue(`INSERT INTO node (id, site_id, fabric_id, name, hardware, mode, state, slots, leaf_id, pod, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now())`,
			nodes[i], w.sites[at%3/2], orNULL(w.fabrics[at%3], rapid.IntRange(0, 9).Draw(t, "fabric") > 0), fmt.Sprint("n-", i),
			rare(t, "hw", "else"), rare(t, "bare_metal", "shared"), rare(t, "available", "maintenance"),
			rapid.SampledFrom([]int{64, 64, 32}).Draw(t, "slots"), orNULL(w.leaves[at], rapid.IntRange(0, 9).Draw(t, "leafless") > 0), fmt.Sprint("pod-", at/2))
		w.drawHealth(t, batch, nodes[i])
		for range rapid.IntRange(0, 4).Draw(t, "allocations") {
			w.drawAllocation(t, batch, nodes[i])
		}
	}
	require.NoError(t, w.Pool.SendBatch(ctx, batch).Close())
	return nodes
}

func (w *warehouse) drawHealth(t *rapid.T, batch *pgx.Batch, node ids.Node) {
	for i := range rapid.IntRange(0, 2).Draw(t, "conditions") {
		var cleared *time.Time
		if rapid.Bool().Draw(t, "cleared") {
			cleared = &w.now
		}
		batch.Queue(`INSERT INTO node_condition (node_id, name, class, onset, reported_at, cleared_at) VALUES ($1, $2, $3, $4, $4, $5)`, node, fmt.Sprint("c-", i),
			rapid.SampledFrom([]string{"prevents_allocation", "degrades", "degrades", "informs"}).Draw(t, "class"), w.now, cleared)
	}
	if rapid.Bool().Draw(t, "heard") {
		batch.Queue(`INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, $2)`, node, w.now.Add(time.Duration(rapid.IntRange(-2, 0).Draw(t, "seen"))*time.Minute))
	}
}

func (w *warehouse) drawAllocation(t *rapid.T, batch *pgx.Batch, node ids.Node) {
	from := rapid.SampledFrom([]int{0, 0, 8, 32}).Draw(t, "from")
	to := rapid.SampledFrom([]int{from + 4, from + 8, 32, 64}).Draw(t, "to")
	begin := w.now.Add(time.Duration(rapid.IntRange(-10, 20).Draw(t, "begin")) * time.Hour)
	state := rapid.SampledFrom([]string{"held", "held", "held", "in_use", "quarantined", "released"}).Draw(t, "state")
	var released *time.Time
	if state == "released" {
		released = &w.now
	}
	purpose, holder := "maintenance", orNULL(w.lease, false)
	if rapid.IntRange(0, 3).Draw(t, "leased") == 0 {
		purpose, holder = "lease", orNULL(w.lease, true)
	}
	if from >= to {
		to = from + 8
	}
	// One that overlaps another is not made.
	batch.Queue(`INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, created_at, released_at)
		VALUES (gen_random_uuid(), $1, $2, $3, int4range($4, $5), tstzrange($6, $7), $8, now(), $9) ON CONFLICT DO NOTHING`,
		node, purpose, holder, from, to, begin, begin.Add(time.Duration(rapid.IntRange(1, 8).Draw(t, "hours"))*time.Hour), state, released)
}

func orNULL[T any](id T, present bool) *T {
	if !present {
		return nil
	}
	return &id
}

// rare draws the second one time in ten.
func rare(t *rapid.T, usual, other string) string {
	if rapid.IntRange(0, 9).Draw(t, other) == 0 {
		return other
	}
	return usual
}

func (w *warehouse) drawQuery(t *rapid.T, nodes []ids.Node) (booking.PoolQuery, booking.Demand) {
	typ := rapid.SampledFrom([]catalog.InstanceType{{Width: 64, Stride: 64}, {Width: 32, Stride: 32}, {Width: 8, Stride: 8}, {Width: 4, BayStarts: []int{0, 4}}}).Draw(t, "type")
	typ.Hardware, typ.Mode, typ.WithHCA = "hw", "bare_metal", rapid.Bool().Draw(t, "with_hca")
	start := w.now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "start")) * time.Hour)
	d := booking.Demand{
		Type: typ, Instances: rapid.IntRange(1, 6).Draw(t, "instances"), Occupied: lease.Window{Start: start, End: start.Add(4 * time.Hour)},
		Topology: rapid.SampledFrom([]booking.Topology{booking.Anywhere, booking.SameLeaf, booking.SamePod}).Draw(t, "topology"), Seed: rapid.Uint64().Draw(t, "seed"),
	}
	q := booking.PoolQuery{Type: typ, Time: lease.Window{Start: start.Add(-6 * time.Hour), End: start.Add(10 * time.Hour)}, Now: w.now}
	if rapid.Bool().Draw(t, "one_site") {
		q.Site = rapid.SampledFrom(w.sites).Draw(t, "site")
	}
	if rapid.Bool().Draw(t, "soon") {
		q.HeardSince = w.now.Add(-time.Minute)
	}
	if rapid.IntRange(0, 3).Draw(t, "narrow") == 0 {
		q.Nodes = nodes[:len(nodes)/2]
	}
	return q, d
}

// plainly reads the same as Pools with Needed left out, written as simply as can be: every machine, one by one.
func (w *warehouse) plainly(t *rapid.T, ctx context.Context, q booking.PoolQuery) []booking.Pool { //nolint:revive // rapid's T comes first
	rows, err := w.Pool.Query(ctx, `
		SELECT n.id, n.site_id, s.name, f.id, coalesce(f.name, ''), coalesce(f.spares, 0), n.leaf_id, n.pod, n.slots,
			(SELECT count(*) FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'degrades')
		FROM node n JOIN site s ON s.id = n.site_id LEFT JOIN fabric f ON f.id = n.fabric_id
		WHERE n.state = 'available' AND n.hardware = 'hw' AND n.mode = 'bare_metal' AND ($1::uuid IS NULL OR n.site_id = $1)
			AND ($2::uuid[] IS NULL OR n.id = ANY($2)) AND (NOT $3 OR n.fabric_id IS NOT NULL)
			AND NOT EXISTS (SELECT FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'prevents_allocation')
			AND NOT EXISTS (SELECT FROM node_liveness v WHERE v.node_id = n.id AND v.seen_at < $4)
		ORDER BY n.site_id, f.id, n.id`, q.Site, q.Nodes, q.Type.WithHCA, q.HeardSince)
	require.NoError(t, err)
	var m booking.Machine
	var p booking.Pool
	var machines []booking.Machine
	var of []booking.Pool
	_, err = pgx.ForEachRow(rows, []any{&m.Node, &p.Site, &p.SiteName, &p.Fabric, &p.FabricName, &p.Spares, &m.Leaf, &m.Pod, &m.Slots, &m.Blemishes}, func() error {
		if !q.Type.WithHCA {
			m.Leaf, p.Fabric, p.FabricName, p.Spares = ids.Switch{}, ids.Fabric{}, "", 0
		}
		machines, of = append(machines, m), append(of, p)
		return nil
	})
	require.NoError(t, err)
	var pools []booking.Pool
	for i := range machines {
		machines[i].Busy = w.busy(t, ctx, q, machines[i].Node)
		if i == 0 || of[i].Site != of[i-1].Site || of[i].Fabric != of[i-1].Fabric {
			pools = append(pools, of[i])
		}
		last := &pools[len(pools)-1]
		last.Machines = append(last.Machines, machines[i])
	}
	return pools
}

func (w *warehouse) busy(t *rapid.T, ctx context.Context, q booking.PoolQuery, node ids.Node) []booking.Busy { //nolint:revive // rapid's T comes first
	rows, err := w.Pool.Query(ctx, `
		SELECT lower(slots), upper(slots), lower(occupied), upper(occupied), state = 'quarantined' OR upper(occupied) <= $2
		FROM allocation WHERE node_id = $1 AND released_at IS NULL`, node, q.Now)
	require.NoError(t, err)
	var b booking.Busy
	var forever bool
	var all []booking.Busy
	_, err = pgx.ForEachRow(rows, []any{&b.Slots.From, &b.Slots.To, &b.Time.Start, &b.Time.End, &forever}, func() error {
		one := b
		if forever {
			one.Time = booking.Forever()
		}
		if forever || one.Time.Overlaps(q.Time) {
			all = append(all, one)
		}
		return nil
	})
	require.NoError(t, err)
	return all
}

func TestWhatPoolsLeavesOutChangesNoPlacement(t *testing.T) {
	t.Parallel()
	w, ctx := newWarehouse(t), t.Context()
	db, err := postgres.Open(ctx, w.URL, 2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	market := postgres.NewBooking(db)
	found, dropped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		nodes := w.draw(t, ctx)
		for range 5 {
			q, d := w.drawQuery(t, nodes)
			plain := w.plainly(t, ctx, q)
			all, err := market.Pools(ctx, q)
			require.NoError(t, err)
			require.Equal(t, withoutBusy(plain), withoutBusy(all))
			for hour := range 4 { // as a calendar does
				step := d
				step.Occupied = lease.Window{Start: q.Time.Start.Add(time.Duration(4*hour) * time.Hour), End: q.Time.Start.Add(time.Duration(4*hour+4) * time.Hour)}
				for i := range all {
					require.Equal(t, booking.Room(step, plain[i]), booking.Room(step, all[i]))
				}
			}
			want := booking.Place(d, plain)
			require.Equal(t, want, booking.Place(d, all))
			q.Needed = d.Occupied
			needed, err := market.Pools(ctx, q)
			require.NoError(t, err)
			require.Equal(t, want, booking.Place(d, needed))
			found, dropped = found+len(want), dropped+count(all)-count(needed)
		}
	})
	require.Positive(t, found, "there were placements to compare")
	require.Positive(t, dropped, "there were machines to leave out")
}

// It once was not: the lease that does not count was compared with maintenance's, which has none.
func TestMaintenanceIsBusyForWhoeverAsks(t *testing.T) {
	t.Parallel()
	w, ctx := newWarehouse(t), t.Context()
	db, err := postgres.Open(ctx, w.URL, 2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	node := w.Nodes(t, "n", "hw", "bare_metal", 1, 1)[0]
	w.Exec(t, `INSERT INTO allocation (id, node_id, purpose, slots, occupied, state, created_at)
		VALUES (gen_random_uuid(), $1, 'maintenance', '[0,64)', tstzrange($2, $3), 'held', now())`, node, w.now, w.now.Add(time.Hour))
	q := booking.PoolQuery{
		Type: catalog.InstanceType{Width: 64, Stride: 64, Hardware: "hw", Mode: "bare_metal"}, Time: lease.Window{Start: w.now, End: w.now.Add(time.Hour)}, Now: w.now,
	}
	pools, err := postgres.NewBooking(db).Pools(ctx, q)
	require.NoError(t, err)
	require.Equal(t, []booking.Busy{{Slots: lease.Slots{From: 0, To: 64}, Time: q.Time}}, pools[0].Machines[0].Busy)
}

func withoutBusy(pools []booking.Pool) []booking.Pool {
	out := make([]booking.Pool, len(pools))
	for i, p := range pools {
		out[i] = p
		out[i].Machines = make([]booking.Machine, len(p.Machines))
		for j, m := range p.Machines {
			m.Busy = nil
			out[i].Machines[j] = m
		}
	}
	return out
}

func count(pools []booking.Pool) int {
	n := 0
	for _, p := range pools {
		n += len(p.Machines)
	}
	return n
}
