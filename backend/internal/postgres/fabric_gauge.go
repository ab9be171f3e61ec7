package postgres

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/ids"
)

var _ fabric.Gauges = (*Isolation)(nil)

// FabricGauges implements fabric.Gauges, in three statements whatever the number of fabrics.
func (s *Isolation) FabricGauges(ctx context.Context) ([]fabric.Gauge, error) {
	fabrics, err := scan[struct {
		ID      ids.Fabric
		Name    string
		Site    string
		Posture document[[]protocol.PostureCheck]
	}](ctx, s.db, "SELECT f.id, f.name, s.name AS site, f.posture FROM fabric f JOIN site s ON s.id = f.site_id ORDER BY s.name, f.name")
	if err != nil {
		return nil, fmt.Errorf("read fabrics: %w", err)
	}
	drift, err := scan[struct {
		FabricID ids.Fabric
		Kind     string
		Count    int
		GaveUp   int
	}](ctx, s.db, "SELECT fabric_id, kind, count(*) AS count, count(gave_up_at) AS gave_up FROM drift WHERE ended_at IS NULL GROUP BY fabric_id, kind")
	if err != nil {
		return nil, fmt.Errorf("count drift: %w", err)
	}
	// An audit that saw nothing says nothing about when the fabric was last seen.
	audits, err := scan[auditRow](ctx, s.db, `SELECT a.* FROM fabric f CROSS JOIN LATERAL (
		SELECT * FROM fabric_audit WHERE fabric_id = f.id AND ports > 0 AND clean + deviating + strangers > 0 ORDER BY ended_at DESC, operation_id DESC LIMIT 1) a`)
	if err != nil {
		return nil, fmt.Errorf("read audits: %w", err)
	}
	gauges, at := make([]fabric.Gauge, len(fabrics)), map[ids.Fabric]*fabric.Gauge{}
	for i, f := range fabrics {
		gauges[i] = fabric.Gauge{Fabric: f.ID, Name: f.Name, Site: f.Site, Posture: f.Posture.Of, Drift: map[fabric.DriftKind]int{}}
		at[f.ID] = &gauges[i]
	}
	for _, d := range drift {
		if g := at[d.FabricID]; g != nil {
			g.Drift[fabric.DriftKind(d.Kind)] += d.Count
			g.GaveUp += d.GaveUp
		}
	}
	for _, row := range audits {
		if g := at[row.FabricID]; g != nil {
			audit := toAudit(row)
			g.Audit = &audit
		}
	}
	return gauges, nil
}
