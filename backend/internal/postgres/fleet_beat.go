package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

// beatQuery writes signs of life in the order of the nodes' ids, so that two of them never wait for each other in a circle, and reads
// what the answers need. A beat whose sequence is not new leaves its row as it was.
const beatQuery = `
	WITH beat AS (
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[]) WITH ORDINALITY AS b (agent_id, node_id, boot_id, sequence, n)
	), earlier AS (
		SELECT l.node_id, l.boot_id FROM node_liveness l JOIN beat b USING (node_id)
	), written AS (
		INSERT INTO node_liveness AS l (node_id, boot_id, sequence, seen_at)
		SELECT node_id, boot_id, sequence, $5::timestamptz FROM beat ORDER BY node_id
		ON CONFLICT (node_id) DO UPDATE SET boot_id = excluded.boot_id, sequence = excluded.sequence, seen_at = excluded.seen_at
		WHERE l.boot_id <> excluded.boot_id OR l.sequence < excluded.sequence
		RETURNING node_id
	)
	SELECT w.node_id IS NOT NULL, e.boot_id IS DISTINCT FROM b.boot_id,
		EXISTS (SELECT FROM allocation a WHERE a.node_id = b.node_id AND a.released_at IS NULL AND a.state = 'in_use'),
		EXISTS (SELECT FROM node_condition c WHERE c.node_id = b.node_id AND c.cleared_at IS NULL),
		EXISTS (SELECT FROM node n WHERE n.id = b.node_id AND (n.inventory IS NOT NULL OR n.reported IS NOT NULL)),
		(SELECT count(*) FROM operation o WHERE o.agent_id = b.agent_id AND o.state = 'queued' AND o.pick_up_by > $5::timestamptz)
	FROM beat b LEFT JOIN written w USING (node_id) LEFT JOIN earlier e USING (node_id) ORDER BY b.n`

// Beat implements fleet.Beats.
func (s *Fleet) Beat(ctx context.Context, beats []fleet.Beat) ([]fleet.Pulse, error) {
	agents, nodes := make([][16]byte, len(beats)), make([][16]byte, len(beats))
	boots, sequences := make([]string, len(beats)), make([]int64, len(beats))
	var at time.Time
	for i, b := range beats {
		agents[i], nodes[i], boots[i], sequences[i] = b.Agent.UUID(), b.Node.UUID(), b.BootID, b.Sequence
		if b.At.After(at) {
			at = b.At
		}
	}
	var pulses []fleet.Pulse
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return raw(ctx, func(conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, beatQuery, agents, nodes, boots, sequences, at)
			if err != nil {
				return err
			}
			pulses, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (fleet.Pulse, error) {
				var p fleet.Pulse
				err := row.Scan(&p.Fresh, &p.Rebooted, &p.Leased, &p.Conditions, &p.Reported, &p.Pending)
				return p, err
			})
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("write heartbeats: %w", translate(err))
	}
	return pulses, nil
}

// BeatFabric implements fleet.Beats.
func (s *Fleet) BeatFabric(ctx context.Context, b fleet.Beat) (fleet.Pulse, error) {
	var found []struct {
		Reported bool
		Pending  int
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			WITH seen AS (UPDATE agent SET last_seen_at = ? WHERE id = ? RETURNING id, fabric_id)
			SELECT f.observed_at IS NOT NULL AS reported,
				(SELECT count(*) FROM operation o WHERE o.agent_id = a.id AND o.state = 'queued' AND o.pick_up_by > ?) AS pending
			FROM seen a JOIN fabric f ON f.id = a.fabric_id`, b.At, b.Agent, b.At).Scan(&found).Error
	})
	if err != nil {
		return fleet.Pulse{}, fmt.Errorf("write heartbeat: %w", translate(err))
	}
	if len(found) == 0 {
		return fleet.Pulse{}, fault.New(fault.NotFound, "agent-not-found", "there is no such agent")
	}
	return fleet.Pulse{Fresh: true, Reported: found[0].Reported, Pending: found[0].Pending}, nil
}

// SetConditions implements fleet.Beats. What has not changed is not written.
func (s *Fleet) SetConditions(ctx context.Context, node ids.Node, reported []protocol.Condition, at time.Time) ([]protocol.Condition, error) {
	if reported == nil {
		reported = []protocol.Condition{}
	}
	body, err := json.Marshal(reported)
	if err != nil {
		return nil, fmt.Errorf("encode conditions: %w", err)
	}
	var fresh []protocol.Condition
	err = s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			WITH reported AS (
				SELECT DISTINCT ON (name, device, onset) * FROM jsonb_to_recordset(CAST(@body AS jsonb))
					AS r (name text, device text, class text, onset timestamptz, evidence text, exit text) ORDER BY name, device, onset
			), cleared AS (
				UPDATE node_condition c SET cleared_at = CAST(@at AS timestamptz) WHERE c.node_id = @node AND c.cleared_at IS NULL
					AND NOT EXISTS (SELECT FROM reported r WHERE (r.name, r.device, r.onset) = (c.name, c.device, c.onset))
			), known AS (
				SELECT c.* FROM node_condition c JOIN reported r USING (name, device, onset) WHERE c.node_id = @node
			), written AS (
				INSERT INTO node_condition AS c (node_id, name, device, class, onset, evidence, exit, reported_at)
				SELECT CAST(@node AS uuid), r.name, r.device, r.class, r.onset, r.evidence, r.exit, CAST(@at AS timestamptz) FROM reported r
				WHERE NOT EXISTS (SELECT FROM known k WHERE (k.name, k.device, k.onset, k.class, k.evidence, k.exit) = (r.name, r.device, r.onset, r.class, r.evidence, r.exit)
					AND k.cleared_at IS NULL)
				ON CONFLICT (node_id, name, device, onset) DO UPDATE SET class = excluded.class, evidence = excluded.evidence, exit = excluded.exit,
					reported_at = excluded.reported_at, cleared_at = NULL
			)
			SELECT r.* FROM reported r WHERE NOT EXISTS (SELECT FROM known k WHERE (k.name, k.device, k.onset) = (r.name, r.device, r.onset) AND k.cleared_at IS NULL)`,
			map[string]any{"body": string(body), "node": node, "at": at}).Scan(&fresh).Error
	})
	if err != nil {
		return nil, fmt.Errorf("write conditions: %w", translate(err))
	}
	return fresh, nil
}

// maxChunkBytes bounds one node's chunk of one minute, compressed; more is dropped.
const maxChunkBytes = 1 << 20

// AppendSamples implements fleet.Beats.
func (s *Fleet) AppendSamples(ctx context.Context, node ids.Node, minute time.Time, compressed []byte) error {
	return s.exec(ctx, "append samples", `
		INSERT INTO metric_chunk AS m (node_id, minute, samples) VALUES (?, ?, ?)
		ON CONFLICT (node_id, minute) DO UPDATE SET samples = m.samples || excluded.samples
		WHERE octet_length(m.samples) + octet_length(excluded.samples) <= ?`, node, minute, compressed, maxChunkBytes)
}

// Chunks implements fleet.Beats.
func (s *Fleet) Chunks(ctx context.Context, node ids.Node, from, to time.Time) ([][]byte, error) {
	var rows []struct{ Samples []byte }
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT samples FROM metric_chunk WHERE node_id = ? AND minute >= ? AND minute < ? ORDER BY minute", node, from, to).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", translate(err))
	}
	chunks := make([][]byte, len(rows))
	for i, r := range rows {
		chunks[i] = r.Samples
	}
	return chunks, nil
}

// ForgetSamples implements fleet.Beats.
func (s *Fleet) ForgetSamples(ctx context.Context, before time.Time) error {
	return s.exec(ctx, "forget samples", "DELETE FROM metric_chunk WHERE minute < ?", before)
}

// Tenants implements fleet.Beats.
func (s *Fleet) Tenants(ctx context.Context, node ids.Node) ([]ids.Lease, error) {
	var found []ids.Lease
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT DISTINCT lease_id FROM allocation WHERE node_id = ? AND released_at IS NULL AND state = 'in_use' AND lease_id IS NOT NULL", node).
			Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read tenants: %w", translate(err))
	}
	return found, nil
}
