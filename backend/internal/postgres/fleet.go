package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

// Fleet keeps agents, their signs of life and their work: market tables, read and written in the platform role.
type Fleet struct{ db *DB }

var (
	_ fleet.Agents     = (*Fleet)(nil)
	_ fleet.Beats      = (*Fleet)(nil)
	_ fleet.Operations = (*Fleet)(nil)
)

// NewFleet returns the fleet of db.
func NewFleet(db *DB) *Fleet { return &Fleet{db: db} }

type agentRow struct {
	ID           ids.Agent `gorm:"primaryKey"`
	Kind         string
	SiteID       ids.Site
	NodeID       ids.Node
	FabricID     ids.Fabric
	PublicKey    []byte
	AgentVersion string
	CreatedAt    time.Time
	RevokedAt    *time.Time
	LastSeenAt   *time.Time
}

func (agentRow) TableName() string { return "agent" }

func toAgent(r agentRow) fleet.Agent {
	return fleet.Agent{
		ID: r.ID, Kind: protocol.AgentKind(r.Kind), Site: r.SiteID, Node: r.NodeID, Fabric: r.FabricID, PublicKey: r.PublicKey, Version: r.AgentVersion,
		CreatedAt: r.CreatedAt.UTC(), RevokedAt: instant(r.RevokedAt),
	}
}

type enrollmentTokenRow struct {
	ID        ids.Enrollment `gorm:"primaryKey"`
	SiteID    ids.Site
	TokenHash []byte
	MaxUses   int
	Uses      int
	ExpiresAt time.Time
	CreatedAt time.Time
}

func (enrollmentTokenRow) TableName() string { return "enrollment_token" }

// InsertToken implements fleet.Agents.
func (s *Fleet) InsertToken(ctx context.Context, t fleet.Token) error {
	row := enrollmentTokenRow{ID: t.ID, SiteID: t.Site, TokenHash: t.Hash, MaxUses: t.MaxUses, Uses: t.Uses, ExpiresAt: t.ExpiresAt, CreatedAt: t.CreatedAt}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert enrolment token: %w", translate(err))
	}
	return nil
}

// TokenForUpdate implements fleet.Agents.
func (s *Fleet) TokenForUpdate(ctx context.Context, hash []byte) (fleet.Token, error) {
	var rows []enrollmentTokenRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Where("token_hash = ?", hash).Clauses(clause.Locking{Strength: "UPDATE"}).Find(&rows).Error
	})
	if err != nil {
		return fleet.Token{}, fmt.Errorf("read enrolment token: %w", translate(err))
	}
	if len(rows) == 0 {
		return fleet.Token{}, fault.New(fault.NotFound, "enrollment-token-not-found", "there is no such token")
	}
	r := rows[0]
	return fleet.Token{
		ID: r.ID, Site: r.SiteID, Hash: r.TokenHash, MaxUses: r.MaxUses, Uses: r.Uses, ExpiresAt: r.ExpiresAt.UTC(), CreatedAt: r.CreatedAt.UTC(),
	}, nil
}

// UseToken implements fleet.Agents.
func (s *Fleet) UseToken(ctx context.Context, id ids.Enrollment) error {
	return s.exec(ctx, "use enrolment token", "UPDATE enrollment_token SET uses = uses + 1 WHERE id = ?", id)
}

// exec runs one statement in the platform role.
func (s *Fleet) exec(ctx context.Context, what, statement string, args ...any) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Exec(statement, args...).Error })
	if err != nil {
		return fmt.Errorf("%s: %w", what, translate(err))
	}
	return nil
}

// InsertAgent implements fleet.Agents.
func (s *Fleet) InsertAgent(ctx context.Context, a fleet.Agent) error {
	row := agentRow{
		ID: a.ID, Kind: string(a.Kind), SiteID: a.Site, NodeID: a.Node, FabricID: a.Fabric, PublicKey: a.PublicKey, AgentVersion: a.Version,
		CreatedAt: a.CreatedAt, RevokedAt: nullable(a.RevokedAt),
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert agent: %w", translate(err))
	}
	return nil
}

// Living implements fleet.Agents.
func (s *Fleet) Living(ctx context.Context, node ids.Node, fabric ids.Fabric) (fleet.Agent, bool, error) {
	var rows []agentRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		find := conn(ctx).Where("revoked_at IS NULL")
		if node.IsZero() {
			find = find.Where("fabric_id = ?", fabric)
		} else {
			find = find.Where("node_id = ?", node)
		}
		return find.Find(&rows).Error
	})
	if err != nil {
		return fleet.Agent{}, false, fmt.Errorf("find agent: %w", translate(err))
	}
	if len(rows) == 0 {
		return fleet.Agent{}, false, nil
	}
	return toAgent(rows[0]), true, nil
}

// Beside implements fleet.Agents.
func (s *Fleet) Beside(ctx context.Context, nodes []ids.Node, fabrics []ids.Fabric) ([]fleet.Agent, error) {
	rows, err := scan[agentRow](ctx, s.db, `SELECT * FROM agent WHERE revoked_at IS NULL AND (node_id = ANY(?::text[]::uuid[]) OR fabric_id = ANY(?::text[]::uuid[]))`,
		textArray(uuidTexts(nodes)), textArray(uuidTexts(fabrics)))
	if err != nil {
		return nil, fmt.Errorf("find agents: %w", err)
	}
	return each(rows, toAgent), nil
}

// Agents implements fleet.Agents.
func (s *Fleet) Agents(ctx context.Context, all []ids.Agent) (map[ids.Agent]fleet.Agent, error) {
	var rows []agentRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Where("id IN ?", all).Find(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("find agents: %w", translate(err))
	}
	found := make(map[ids.Agent]fleet.Agent, len(rows))
	for _, r := range rows {
		found[r.ID] = toAgent(r)
	}
	return found, nil
}

// List implements fleet.Agents.
func (s *Fleet) List(ctx context.Context, site ids.Site) ([]fleet.Agent, error) {
	var rows []agentRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		find := conn(ctx).Order("created_at, id")
		if !site.IsZero() {
			find = find.Where("site_id = ?", site)
		}
		return find.Find(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", translate(err))
	}
	return each(rows, toAgent), nil
}

// Revoke implements fleet.Agents.
func (s *Fleet) Revoke(ctx context.Context, id ids.Agent, at time.Time) error {
	var found int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec("UPDATE agent SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", at, id)
		found = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return fmt.Errorf("revoke agent: %w", translate(err))
	}
	if found == 0 {
		return fault.New(fault.NotFound, "agent-not-found", "there is no such agent")
	}
	return nil
}

// UseOnce implements fleet.Agents. It waits for a transaction that is using the same token.
func (s *Fleet) UseOnce(ctx context.Context, id ids.Agent, token string, expires time.Time) (bool, error) {
	var written int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec("INSERT INTO agent_jti (agent_id, jti, expires_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", id, token, expires)
		written = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return false, fmt.Errorf("note used token: %w", translate(err))
	}
	return written == 1, nil
}

// ForgetUsed implements fleet.Agents.
func (s *Fleet) ForgetUsed(ctx context.Context, before time.Time) error {
	// A minute more, since a token is good for a few seconds past its end.
	return s.exec(ctx, "forget used tokens", "DELETE FROM agent_jti WHERE expires_at < ?", before.Add(-time.Minute))
}
