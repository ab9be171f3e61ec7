package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

type partitionMemberRow struct {
	PartitionID  ids.Partition `gorm:"primaryKey"`
	HcaPortID    ids.HCAPort   `gorm:"primaryKey"`
	AllocationID ids.Allocation
	OrgID        ids.Org
	Wanted       bool
	JoinedAt     *time.Time
	LeftAt       *time.Time
}

func (partitionMemberRow) TableName() string { return "partition_member" }

type memberOfNode struct {
	Member   partitionMemberRow `gorm:"embedded"`
	GUID     guidText
	NodeID   ids.Node
	NodeName string
}

func toMember(r memberOfNode) fabric.Member {
	return fabric.Member{
		Partition: r.Member.PartitionID, Port: r.Member.HcaPortID, GUID: protocol.GUID(r.GUID), Allocation: r.Member.AllocationID, Node: r.NodeID,
		NodeName: r.NodeName, Org: r.Member.OrgID, Wanted: r.Member.Wanted, JoinedAt: instant(r.Member.JoinedAt), LeftAt: instant(r.Member.LeftAt),
	}
}

// guidText is a GUID in a text column.
type guidText protocol.GUID

// Scan implements sql.Scanner.
func (g *guidText) Scan(src any) error {
	text, ok := src.(string)
	if !ok {
		return fmt.Errorf("scan GUID: unexpected %T", src)
	}
	return (*protocol.GUID)(g).UnmarshalText([]byte(text))
}

// Members implements fabric.Partitions.
func (s *Isolation) Members(ctx context.Context, of []ids.Partition) ([]fabric.Member, error) {
	if len(of) == 0 {
		return []fabric.Member{}, nil
	}
	rows, err := scan[memberOfNode](ctx, s.db, `
		SELECT m.*, p.guid, p.node_id, n.name AS node_name
		FROM partition_member m JOIN hca_port p ON p.id = m.hca_port_id JOIN node n ON n.id = p.node_id
		WHERE m.partition_id IN ? ORDER BY p.guid, m.partition_id`, of)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	return each(rows, toMember), nil
}

// PutMembers implements fabric.Partitions.
func (s *Isolation) PutMembers(ctx context.Context, members []fabric.Member) error {
	if len(members) == 0 {
		return nil
	}
	rows := each(members, func(m fabric.Member) partitionMemberRow {
		return partitionMemberRow{
			PartitionID: m.Partition, HcaPortID: m.Port, AllocationID: m.Allocation, OrgID: m.Org, Wanted: m.Wanted, JoinedAt: nullable(m.JoinedAt),
			LeftAt: nullable(m.LeftAt),
		}
	})
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{
			Columns:   []clause.Column{{Name: "partition_id"}, {Name: "hca_port_id"}},
			DoUpdates: clause.AssignmentColumns([]string{"allocation_id", "wanted", "joined_at", "left_at"}),
		}).CreateInBatches(&rows, insertBatch).Error
	})
	if err != nil {
		return fmt.Errorf("write members: %w", translate(err))
	}
	return nil
}

type portRow struct {
	ID           ids.HCAPort
	GUID         guidText
	AllocationID ids.Allocation
	NodeID       ids.Node
	NodeName     string
	Epoch        int64
	Slots        slotRange
}

// Ports implements fabric.Partitions. Ports that belong to no bay come with the whole node only.
func (s *Isolation) Ports(ctx context.Context, id ids.Lease, states []lease.AllocationState) ([]fabric.Port, error) {
	rows, err := scan[portRow](ctx, s.db, `
		SELECT p.id, p.guid, a.id AS allocation_id, a.node_id, n.name AS node_name, a.epoch, a.slots
		FROM allocation a JOIN lease l ON l.id = a.lease_id JOIN node n ON n.id = a.node_id
		JOIN hca_port p ON p.node_id = a.node_id AND p.fabric_id = l.fabric_id
			AND (p.bay >= lower(a.slots) / 8 AND p.bay < (upper(a.slots) + 7) / 8 OR p.bay IS NULL AND lower(a.slots) = 0 AND upper(a.slots) = n.slots)
		WHERE a.lease_id = ? AND a.released_at IS NULL AND a.state IN ? ORDER BY p.guid`, id, states)
	if err != nil {
		return nil, fmt.Errorf("read ports: %w", err)
	}
	return each(rows, func(r portRow) fabric.Port {
		return fabric.Port{
			ID: r.ID, GUID: protocol.GUID(r.GUID), Allocation: r.AllocationID, Node: r.NodeID, NodeName: r.NodeName, Epoch: r.Epoch,
			Slots: protocol.Slots{From: r.Slots.From, To: r.Slots.To},
		}
	}), nil
}

// Elsewhere implements fabric.Partitions.
func (s *Isolation) Elsewhere(ctx context.Context, ports []ids.HCAPort, but ids.Partition) ([]protocol.GUID, error) {
	if len(ports) == 0 {
		return []protocol.GUID{}, nil
	}
	rows, err := scan[struct{ GUID guidText }](ctx, s.db, `
		SELECT DISTINCT p.guid FROM partition_member m JOIN partition x ON x.id = m.partition_id JOIN hca_port p ON p.id = m.hca_port_id
		WHERE m.hca_port_id IN ? AND m.left_at IS NULL AND x.state <> 'free' AND x.id <> ? ORDER BY p.guid`, ports, but)
	if err != nil {
		return nil, fmt.Errorf("read other memberships: %w", err)
	}
	return each(rows, func(r struct{ GUID guidText }) protocol.GUID { return protocol.GUID(r.GUID) }), nil
}
