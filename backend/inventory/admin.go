package inventory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Filter narrows a list of nodes, which is ordered by name. Zero fields do not narrow.
type Filter struct {
	// Provider keeps to the sites of one provider.
	Provider ids.Org
	Site     ids.Site
	Node     ids.Node
	State    State
	After    ids.Node // the last one of the page before
	Limit    int
}

// Overview is a node as a list shows it.
type Overview struct {
	Node        Node
	SiteName    string
	FabricName  string
	LeafName    string
	LeasedSlots int // held right now, for whatever purpose
	LastSeen    time.Time
	Conditions  []Condition
}

// Detail is everything about one node.
type Detail struct {
	Overview
	GPUs    []GPU
	Ports   []Port
	Held    []Held
	Changes []Change
}

// Sites lists all sites by name.
func (s *Service) Sites(ctx context.Context) ([]Site, error) {
	return within(ctx, s.tx, s.places.Sites)
}

// SiteByName returns a NotFound fault for an unknown name.
func (s *Service) SiteByName(ctx context.Context, name string) (Site, error) {
	return within(ctx, s.tx, func(ctx context.Context) (Site, error) { return s.places.SiteByName(ctx, name) })
}

// Fabrics lists all fabrics by name.
func (s *Service) Fabrics(ctx context.Context) ([]Fabric, error) {
	return within(ctx, s.tx, s.places.Fabrics)
}

// Fabric returns a fabric with its switches and links. It returns a NotFound fault for an unknown id.
func (s *Service) Fabric(ctx context.Context, id ids.Fabric) (Fabric, []Switch, []Link, error) {
	var fabric Fabric
	var switches []Switch
	var links []Link
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		if fabric, err = s.places.Fabric(ctx, id); err != nil {
			return err
		}
		if switches, err = s.topo.Switches(ctx, id); err != nil {
			return err
		}
		links, err = s.topo.Links(ctx, id)
		return err
	})
	return fabric, switches, links, err
}

// Nodes lists nodes by name.
func (s *Service) Nodes(ctx context.Context, f Filter) ([]Overview, error) {
	return within(ctx, s.tx, func(ctx context.Context) ([]Overview, error) { return s.nodes.ListNodes(ctx, f) })
}

// Node returns everything about a node. It returns a NotFound fault for an unknown id.
func (s *Service) Node(ctx context.Context, id ids.Node) (Detail, error) {
	return within(ctx, s.tx, func(ctx context.Context) (Detail, error) { return s.detail(ctx, id) })
}

func (s *Service) detail(ctx context.Context, id ids.Node) (Detail, error) {
	node, err := s.nodes.Node(ctx, id)
	if err != nil {
		return Detail{}, err
	}
	var d Detail
	list, err := s.nodes.ListNodes(ctx, Filter{Node: id})
	if err != nil {
		return Detail{}, err
	}
	if len(list) == 1 {
		d.Overview = list[0]
	}
	d.Node = node
	if d.GPUs, d.Ports, err = s.nodes.Parts(ctx, id); err != nil {
		return Detail{}, err
	}
	if d.Held, err = s.nodes.Held(ctx, id); err != nil {
		return Detail{}, err
	}
	d.Changes, err = s.nodes.Changes(ctx, id)
	return d, err
}

// edit changes a node under its lock. version is the one that the admin saw; 0 does not look at it.
//
// It returns NotFound and Stale faults, and those of change.
func (s *Service) edit(ctx context.Context, id ids.Node, version int64, change func(ctx context.Context, n *Node) error) (Detail, error) {
	return within(ctx, s.tx, func(ctx context.Context) (Detail, error) {
		node, err := s.nodes.NodeForUpdate(ctx, id)
		if err != nil {
			return Detail{}, err
		}
		if version != 0 && version != node.Version {
			return Detail{}, fault.New(fault.Stale, "stale", "the node has changed since you read it")
		}
		if err := change(ctx, &node); err != nil {
			return Detail{}, err
		}
		node.Version++
		if err := s.nodes.UpdateNode(ctx, node); err != nil {
			return Detail{}, err
		}
		return s.detail(ctx, id)
	})
}

// SetState moves a node as an admin wishes. Verifying accepts a discovered machine, or tests one again, and may find it available
// at once; slots that are quarantined are cleaned again first, by the node's own process. Retiring is refused while anything holds the
// node; slots that are quarantined are given up with it, for which it needs a reason.
//
// It returns NotFound, Stale, Forbidden (a provider's step that is the operator's), Invalid (a quarantine without reason and exit, a
// retirement without the reason that it needs) and Conflict faults.
func (s *Service) SetState(ctx context.Context, id ids.Node, version int64, m Move) (Detail, error) {
	return within(ctx, s.tx, func(ctx context.Context) (Detail, error) {
		if m.To == Retired && !m.ByProvider && s.scrap != nil { // leases' rows are locked before nodes', as everywhere
			if err := s.scrap.WriteOff(ctx, id, m.Reason); err != nil {
				return Detail{}, err
			}
		}
		return s.setState(ctx, id, version, m)
	})
}

func (s *Service) setState(ctx context.Context, id ids.Node, version int64, m Move) (Detail, error) {
	edit := s.edit
	if m.To == Verifying {
		edit = s.editPlace
	}
	return edit(ctx, id, version, func(ctx context.Context, n *Node) error {
		if err := m.permit(n.State); err != nil {
			return err
		}
		if m.To == Retired {
			if err := s.refuseWhileHeld(ctx, *n); err != nil {
				return err
			}
		}
		if err := s.minds(ctx, *n, m); err != nil {
			return err
		}
		if n.State == Discovered && m.To == Verifying {
			if err := accept(n); err != nil {
				return err
			}
		} else if err := n.MoveTo(m); err != nil {
			return err
		}
		return s.verify(ctx, n)
	})
}

// editPlace is edit for what may locate the node's ports for the first time, or elsewhere.
func (s *Service) editPlace(ctx context.Context, id ids.Node, version int64, change func(ctx context.Context, n *Node) error) (Detail, error) {
	return within(ctx, s.tx, func(ctx context.Context) (Detail, error) {
		if err := s.topo.MeetReports(ctx, true); err != nil {
			return Detail{}, err
		}
		if _, err := s.edit(ctx, id, version, change); err != nil {
			return Detail{}, err
		}
		if err := s.rearrange(ctx, id); err != nil {
			return Detail{}, err
		}
		return s.detail(ctx, id)
	})
}

// Quarantine takes a node off the market from now on. For the platform's own use, when a wipe or an isolation failed.
func (s *Service) Quarantine(ctx context.Context, id ids.Node, reason string, exit Exit) error {
	_, err := s.edit(ctx, id, 0, func(_ context.Context, n *Node) error {
		return n.MoveTo(Move{To: Quarantined, Reason: reason, Exit: exit})
	})
	return err
}

// SetMode says how a node is shared out from now on. It is refused while anything holds the node, since types of one mode do not
// mix with those of the other.
func (s *Service) SetMode(ctx context.Context, id ids.Node, version int64, mode catalog.Mode) (Detail, error) {
	return s.edit(ctx, id, version, func(ctx context.Context, n *Node) error {
		if n.Mode == mode {
			return nil
		}
		if err := s.refuseWhileHeld(ctx, *n); err != nil {
			return err
		}
		n.Mode = mode
		return nil
	})
}

func (s *Service) refuseWhileHeld(ctx context.Context, n Node) error {
	held, err := s.nodes.Held(ctx, n.ID)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return fault.New(fault.Conflict, "node-in-use", "%d allocations hold the node", len(held)).With("allocations", len(held))
	}
	return nil
}

// SettleChanges decides the node's pending differences: accepted, the latest report becomes the truth, and parts keep their bays
// by PCI address; rejected, what was accepted stays so.
func (s *Service) SettleChanges(ctx context.Context, id ids.Node, version int64, as ChangeState) (Detail, error) {
	return s.editPlace(ctx, id, version, func(ctx context.Context, n *Node) error {
		if err := s.nodes.SettleChanges(ctx, id, as); err != nil {
			return fmt.Errorf("settle changes: %w", err)
		}
		if as != ChangeAccepted {
			return nil
		}
		if n.Reported == nil { // only its ports' places were in question
			return s.locate(ctx, n, true)
		}
		if n.Accepted != nil && !sameBays(*n.Accepted, *n.Reported) { // bays would be numbered anew under somebody's feet
			if err := s.refuseWhileHeld(ctx, *n); err != nil {
				return err
			}
		}
		if err := s.describe(ctx, n, *n.Reported); err != nil {
			return err
		}
		if n.Hardware == "" {
			return fault.New(fault.Conflict, "node-not-recognised", "the machine is not recognised: %s", n.StateReason)
		}
		n.Accepted, n.Reported = n.Reported, nil
		return s.locate(ctx, n, true)
	})
}

// sameBays reports whether both reports have GPUs at the same PCI addresses.
func sameBays(a, b protocol.NodeInventory) bool {
	return slices.EqualFunc(bays(a.GPUs), bays(b.GPUs), func(x, y GPU) bool { return x.PCIAddress == y.PCIAddress })
}

func within[T any](ctx context.Context, tx Transactor, fn func(ctx context.Context) (T, error)) (T, error) {
	var out T
	err := tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		out, err = fn(ctx)
		return err
	})
	return out, err
}
