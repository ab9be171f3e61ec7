package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Pools implements booking.Market, in one round trip: places, blemishes, and the machines with what is busy on them. It is the query
// that grows with the market, so it reads binary rows through pgx, and leaves full machines to the database.
func (s *Booking) Pools(ctx context.Context, q booking.PoolQuery) ([]booking.Pool, error) {
	read := &poolReader{withHCA: q.Type.WithHCA, sites: map[[16]byte]string{}, fabrics: map[[16]byte]fabricPlace{}, blemishes: map[[16]byte]int{}}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT id, name FROM site`).Query(read.readSites)
	batch.Queue(`SELECT id, name, spares FROM fabric`).Query(read.readFabrics)
	blemishes := &query{}
	blemishes.add(`SELECT node_id, count(*) FROM node_condition WHERE cleared_at IS NULL AND class = 'degrades'`)
	if q.Nodes != nil {
		blemishes.add(` AND node_id = ANY(%s::text[]::uuid[])`, uuidTexts(q.Nodes))
	}
	blemishes.add(` GROUP BY node_id`)
	batch.Queue(blemishes.text.String(), blemishes.args...).Query(read.readBlemishes)
	machines := machinesQuery(q)
	batch.Queue(machines.text.String(), machines.args...).Query(read.readMachines)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return raw(ctx, func(conn *pgx.Conn) error { return conn.SendBatch(ctx, batch).Close() })
	})
	if err != nil {
		return nil, fmt.Errorf("read capacity: %w", translate(err))
	}
	return read.pools, nil
}

// query is SQL that grows with its arguments.
type query struct {
	text strings.Builder
	args []any
}

// add appends SQL in which each %s stands for the next argument.
func (q *query) add(sql string, args ...any) {
	if len(args) == 0 {
		q.text.WriteString(sql)
		return
	}
	places := make([]any, len(args))
	for i, arg := range args {
		q.args = append(q.args, arg)
		places[i] = "$" + strconv.Itoa(len(q.args))
	}
	fmt.Fprintf(&q.text, sql, places...)
}

// machinesQuery reads one row for each busy part of each machine, and one for a machine on which nothing is.
//
// What is held in the time comes from an index alone (allocation_live_window); what is not to be had until somebody clears it, whatever
// its time, from two small ones. A part may thereby come twice, which changes nothing.
func machinesQuery(q booking.PoolQuery) *query {
	sql := &query{}
	busy := func(forever, condition string, args ...any) {
		sql.add(`SELECT node_id, slots, occupied, ` + forever + ` AS forever FROM allocation WHERE released_at IS NULL AND `)
		sql.add(condition, args...)
		if q.Nodes != nil {
			sql.add(` AND node_id = ANY(%s::text[]::uuid[])`, uuidTexts(q.Nodes))
		}
	}
	sql.add(`WITH busy AS MATERIALIZED (`)
	busy("false", `occupied && tstzrange(%s, %s)`, q.Time.Start, q.Time.End)
	sql.add(` UNION ALL `)
	busy("true", `state = 'quarantined'`)
	sql.add(` UNION ALL `)
	busy("true", `upper(occupied) <= %s`, q.Now)
	sql.add(`)
		SELECT n.id, n.site_id, n.fabric_id, n.leaf_id, n.pod, n.slots, lower(b.slots), upper(b.slots), lower(b.occupied), upper(b.occupied), b.forever
		FROM node n LEFT JOIN busy b ON b.node_id = n.id`)
	narrowNodes(sql, q)
	sql.add(` ORDER BY n.site_id, n.fabric_id, n.id`)
	return sql
}

// narrowNodes leaves out the machines that do not count.
func narrowNodes(sql *query, q booking.PoolQuery) {
	sql.add(` WHERE n.state = 'available' AND n.hardware = %s AND n.mode = %s`, q.Type.Hardware, string(q.Type.Mode))
	if !q.Site.IsZero() {
		sql.add(` AND n.site_id = %s`, q.Site)
	}
	if q.Nodes != nil {
		sql.add(` AND n.id = ANY(%s::text[]::uuid[])`, uuidTexts(q.Nodes))
	}
	if q.Type.WithHCA {
		sql.add(` AND n.fabric_id IS NOT NULL AND` + takesLeases)
	}
	sql.add(`
		AND NOT EXISTS (SELECT FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'prevents_allocation')`)
	if !q.HeardSince.IsZero() {
		sql.add(` AND NOT EXISTS (SELECT FROM node_liveness v WHERE v.node_id = n.id AND v.seen_at < %s)`, q.HeardSince)
	}
	if needed := q.Needed; needed != (lease.Window{}) {
		// Full are machines that are taken as a whole; of those that the type fills, also the ones of which any part is taken.
		sql.add(`
		AND NOT EXISTS (SELECT FROM busy x WHERE x.node_id = n.id AND (x.forever OR x.occupied && tstzrange(%s, %s))
			AND (n.slots <= %s::int AND x.slots && int4range(0, n.slots) OR x.slots @> int4range(0, n.slots)))`, needed.Start, needed.End, q.Type.Width)
	}
}

type fabricPlace struct {
	name   string
	spares int
}

// poolReader groups machines by fabric; of types without InfiniBand, by site.
type poolReader struct {
	withHCA   bool
	sites     map[[16]byte]string
	fabrics   map[[16]byte]fabricPlace
	blemishes map[[16]byte]int
	pools     []booking.Pool
}

func (p *poolReader) readSites(rows pgx.Rows) error {
	var id [16]byte
	var name string
	_, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		p.sites[id] = name
		return nil
	})
	return err
}

func (p *poolReader) readFabrics(rows pgx.Rows) error {
	var id [16]byte
	var fabric fabricPlace
	_, err := pgx.ForEachRow(rows, []any{&id, &fabric.name, &fabric.spares}, func() error {
		p.fabrics[id] = fabric
		return nil
	})
	return err
}

func (p *poolReader) readBlemishes(rows pgx.Rows) error {
	var id [16]byte
	var count int
	_, err := pgx.ForEachRow(rows, []any{&id, &count}, func() error {
		p.blemishes[id] = count
		return nil
	})
	return err
}

// readMachines expects the rows of a machine, and the machines of a pool, next to each other.
func (p *poolReader) readMachines(rows pgx.Rows) error {
	var node, site [16]byte
	var fabric, leaf pgtype.UUID
	var pod string
	var slots int
	var from, to *int
	var start, end *time.Time
	var forever *bool
	var pool *booking.Pool
	var poolSite, last [16]byte
	var poolFabric pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&node, &site, &fabric, &leaf, &pod, &slots, &from, &to, &start, &end, &forever}, func() error {
		if !p.withHCA {
			fabric, leaf = pgtype.UUID{}, pgtype.UUID{}
		}
		if pool == nil || site != poolSite || fabric != poolFabric {
			p.pools = append(p.pools, p.newPool(site, fabric))
			pool, poolSite, poolFabric = &p.pools[len(p.pools)-1], site, fabric
		}
		if len(pool.Machines) == 0 || node != last {
			pool.Machines = append(pool.Machines, booking.Machine{
				Node: idOf[ids.Node](node), Leaf: idOf[ids.Switch](leaf.Bytes), Pod: pod, Slots: slots, Blemishes: p.blemishes[node],
			})
			last = node
		}
		if from == nil || to == nil || start == nil || end == nil || forever == nil {
			return nil // nothing is busy on it
		}
		busy := booking.Busy{Slots: lease.Slots{From: *from, To: *to}, Time: lease.Window{Start: start.UTC(), End: end.UTC()}}
		if *forever {
			busy.Time = booking.Forever()
		}
		machine := &pool.Machines[len(pool.Machines)-1]
		machine.Busy = append(machine.Busy, busy)
		return nil
	})
	return err
}

func (p *poolReader) newPool(site [16]byte, fabric pgtype.UUID) booking.Pool {
	pool := booking.Pool{Site: idOf[ids.Site](site), SiteName: p.sites[site]}
	if fabric.Valid {
		known := p.fabrics[fabric.Bytes]
		pool.Fabric, pool.FabricName, pool.Spares = idOf[ids.Fabric](fabric.Bytes), known.name, known.spares
	}
	return pool
}

// idOf wraps a uuid; the nil uuid becomes the zero id.
func idOf[T any, P interface {
	*T
	Scan(src any) error
}](uuid [16]byte) T {
	var id T
	_ = P(&id).Scan(uuid) // sixteen bytes always fit
	return id
}
