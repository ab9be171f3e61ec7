package inventory

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Transactor runs fn in one transaction.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Places keeps sites and fabrics.
type Places interface {
	Sites(ctx context.Context) ([]Site, error)
	// Site returns a NotFound fault, code "site-not-found"; so does SiteByName.
	Site(ctx context.Context, id ids.Site) (Site, error)
	SiteByName(ctx context.Context, name string) (Site, error)
	// AddSite returns a Conflict fault, code "duplicate", for a name that is taken.
	AddSite(ctx context.Context, s Site) error
	Fabrics(ctx context.Context) ([]Fabric, error)
	// Fabric returns a NotFound fault, code "fabric-not-found".
	Fabric(ctx context.Context, id ids.Fabric) (Fabric, error)
	// AddFabric writes the fabric unless its site has one of that name, and returns the one that counts.
	AddFabric(ctx context.Context, f Fabric) (Fabric, error)
}

// Topology keeps what hangs where.
type Topology interface {
	// SaveReport writes a fabric's report: switches are kept for ever, links and ports are those of the last report.
	SaveReport(ctx context.Context, f Fabric, topology protocol.Topology) error
	// Locate gives ports their switch, and nodes their fabric, leaf and pod, by what fabrics reported; of one fabric, or of one
	// node. A port that hangs elsewhere than before stays where it is while a lease holds its node, and becomes a pending change of
	// the node, observed at that instant; with reviewed, an admin has accepted it and it moves.
	LocateFabric(ctx context.Context, id ids.Fabric, at time.Time) error
	LocateNode(ctx context.Context, id ids.Node, at time.Time, reviewed bool) error
	// MeetReports makes fabrics' reports and nodes' reports see each other: until the transaction ends, reports of nodes wait for that of
	// a fabric and the other way round, and only nodes' go side by side. Without it, two that come at the same instant would each
	// look before the other has committed, and the node's ports would never be found. It comes before any row lock.
	MeetReports(ctx context.Context, ofFabric bool) error
	Switches(ctx context.Context, fabric ids.Fabric) ([]Switch, error)
	Links(ctx context.Context, fabric ids.Fabric) ([]Link, error)
	// KnownPorts lists all adapters' ports of a site's nodes that are not retired.
	KnownPorts(ctx context.Context, site ids.Site) ([]KnownPort, error)
	// RemoveSwitches takes switches that nothing hangs on any more off the fabric.
	RemoveSwitches(ctx context.Context, fabric ids.Fabric, guids []protocol.GUID) error
	// SeenPorts lists the adapters' ports that the fabric's manager sees.
	SeenPorts(ctx context.Context, fabric ids.Fabric) ([]protocol.TopologyPort, error)
	// PodsApart lists the fabrics on which the node hangs on leaves of several pods that nobody planned.
	PodsApart(ctx context.Context, node ids.Node) ([]ids.Fabric, error)
	// SaveSwitches writes what switches are; others stay.
	SaveSwitches(ctx context.Context, fabric ids.Fabric, switches []protocol.Switch) error
	TopologySummary(ctx context.Context, fabric ids.Fabric) (TopologySummary, error)
	TopologyPage(ctx context.Context, fabric ids.Fabric, after ids.Switch, limit int) ([]TopologySwitch, error)
}

// Nodes keeps machines and their parts.
type Nodes interface {
	// AddNode writes the node unless its site has one of that name, and returns the one that counts.
	AddNode(ctx context.Context, n Node) (Node, error)
	// Node returns a NotFound fault, code "node-not-found"; so does NodeForUpdate, which locks the row.
	Node(ctx context.Context, id ids.Node) (Node, error)
	NodeForUpdate(ctx context.Context, id ids.Node) (Node, error)
	UpdateNode(ctx context.Context, n Node) error
	ListNodes(ctx context.Context, f Filter) ([]Overview, error)
	// Unverified lists the fabric's nodes that are being verified.
	Unverified(ctx context.Context, fabric ids.Fabric) ([]ids.Node, error)
	Parts(ctx context.Context, id ids.Node) ([]GPU, []Port, error)
	// ReplaceParts writes what the node is made of; parts that stay keep their ids.
	ReplaceParts(ctx context.Context, id ids.Node, gpus []GPU, ports []Port) error
	// Claimants names other nodes that claim one of the ports' GUIDs, with the GUID.
	Claimants(ctx context.Context, id ids.Node, ports []Port) ([]string, error)
	Conditions(ctx context.Context, id ids.Node) ([]Condition, error)
	Changes(ctx context.Context, id ids.Node) ([]Change, error)
	AddChanges(ctx context.Context, id ids.Node, changes []Change) error
	// SettleChanges decides all pending changes of the node.
	SettleChanges(ctx context.Context, id ids.Node, as ChangeState) error
	Held(ctx context.Context, id ids.Node) ([]Held, error)
	// Unclean lists what of the node is quarantined, or being cleaned though its lease is over.
	Unclean(ctx context.Context, id ids.Node) ([]Held, error)
	// Wake has the node's own process look at it once the transaction commits.
	Wake(ctx context.Context, id ids.Node, at time.Time) error
}

// Service takes reports and answers what there is.
type Service struct {
	tx     Transactor
	places Places
	topo   Topology
	nodes  Nodes
	clock  clock.Clock
	scrap  WriteOffs
}

// New returns the inventory.
func New(tx Transactor, places Places, topo Topology, nodes Nodes, clock clock.Clock) *Service {
	return &Service{tx: tx, places: places, topo: topo, nodes: nodes, clock: clock}
}

// AddSite makes a site. It returns a Conflict fault for a name that is taken.
func (s *Service) AddSite(ctx context.Context, site Site) (Site, error) {
	site.ID, site.Version, site.CreatedAt = ids.Make[ids.Site](), 1, s.clock.Now()
	if site.TimeZone == "" {
		site.TimeZone = "UTC"
	}
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error { return s.places.AddSite(ctx, site) })
	return site, err
}

// AddNode finds the site's node of that name, or makes it: discovered, and with nothing known of it. For enrolment, within the
// transaction that ctx carries.
func (s *Service) AddNode(ctx context.Context, site ids.Site, name, serial string) (Node, error) {
	var node Node
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		node, err = s.nodes.AddNode(ctx, Node{
			ID: ids.Make[ids.Node](), Site: site, Name: name, Serial: serial, Mode: catalog.BareMetal, State: Discovered, Version: 1, CreatedAt: s.clock.Now(),
		})
		return err
	})
	return node, err
}

// AddFabric finds the site's fabric of that name, or makes it. For enrolment, within the transaction that ctx carries.
func (s *Service) AddFabric(ctx context.Context, site ids.Site, name string) (Fabric, error) {
	var fabric Fabric
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		fabric, err = s.places.AddFabric(ctx, Fabric{
			ID: ids.Make[ids.Fabric](), Site: site, Name: name, Kind: "infiniband", MaxPKeysPerPort: 31, CreatedAt: s.clock.Now(),
		})
		return err
	})
	return fabric, err
}

// ReportNode takes what an agent found on its machine. The first report of an accepted site's machine, when it is recognised,
// puts it on its way to the market; a later one is compared with what was accepted.
func (s *Service) ReportNode(ctx context.Context, id ids.Node, report protocol.NodeInventory) (protocol.InventoryReply, error) {
	var reply protocol.InventoryReply
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.topo.MeetReports(ctx, false); err != nil {
			return err
		}
		node, err := s.nodes.NodeForUpdate(ctx, id)
		if err != nil {
			return err
		}
		changes, err := s.take(ctx, &node, report)
		if err != nil {
			return err
		}
		if err := s.advance(ctx, &node); err != nil {
			return err
		}
		reply = protocol.InventoryReply{Changes: make([]string, len(changes)), State: string(node.State)}
		for i, c := range changes {
			reply.Changes[i] = c.Words()
		}
		return s.nodes.UpdateNode(ctx, node)
	})
	if err == nil {
		err = s.rearrange(ctx, id)
	}
	if err != nil {
		return protocol.InventoryReply{}, fmt.Errorf("report node: %w", err)
	}
	return reply, nil
}

// take keeps the report: as the description of a machine that is not accepted yet, or as a difference.
func (s *Service) take(ctx context.Context, node *Node, report protocol.NodeInventory) ([]Change, error) {
	if node.Accepted == nil {
		node.Reported = &report
		return nil, s.describe(ctx, node, report)
	}
	changes := Compare(*node.Accepted, report, s.clock.Now())
	if len(changes) == 0 {
		if node.Reported == nil {
			return nil, nil
		}
		// It is again what was accepted (a GPU is back on its bus, say): there is nothing left to decide. Left pending, the difference
		// would keep the node from passing its tests for ever.
		node.Reported = nil
		return nil, s.nodes.SettleChanges(ctx, node.ID, Withdrawn)
	}
	node.Reported = &report
	return changes, s.nodes.AddChanges(ctx, node.ID, changes)
}

// describe writes what the report says about a machine into its row and parts.
func (s *Service) describe(ctx context.Context, node *Node, report protocol.NodeInventory) error {
	h := Recognise(report)
	claimants, err := s.nodes.Claimants(ctx, node.ID, h.Ports)
	if err != nil {
		return err
	}
	problems := append(h.Problems, claimants...)
	if node.Hardware == "" { // an admin's choice of mode outlives later reports
		node.Mode = h.Mode
	}
	node.Hardware, node.Slots, node.HCAPerGPU = h.Key, h.Slots(), h.HCAPerGPU
	node.Serial, node.Manufacturer, node.Product, node.BMCAddress = report.Serial, report.Manufacturer, report.Product, report.BMCAddress
	node.CPUCores, node.MemoryBytes = report.CPUCores, report.MemoryBytes
	if len(report.GPUs) > 0 {
		node.NVLinkDomain = report.GPUs[0].NVLinkDomain
	}
	node.StateReason = strings.Join(problems, "; ")
	if len(problems) > 0 {
		node.Hardware = ""
		return nil
	}
	return s.nodes.ReplaceParts(ctx, node.ID, h.GPUs, h.Ports)
}

// advance moves a node on as far as its site's policy and its checks let it.
func (s *Service) advance(ctx context.Context, node *Node) error {
	if node.State == Discovered && node.Hardware != "" {
		site, err := s.places.Site(ctx, node.Site)
		if err != nil {
			return err
		}
		if site.AutoAccept {
			if err := accept(node); err != nil {
				return err
			}
		}
	}
	return s.verify(ctx, node)
}

// accept makes the latest report the truth about a discovered machine, and lets its verification begin.
func accept(node *Node) error {
	if node.Hardware == "" || node.Reported == nil {
		return fault.New(fault.Conflict, "node-not-recognised", "the machine is not recognised: %s", node.StateReason)
	}
	node.Accepted, node.Reported = node.Reported, nil
	return node.MoveTo(Move{To: Verifying})
}

// verify puts a node that is being verified on the market once nothing speaks against it, and else says what it waits for.
func (s *Service) verify(ctx context.Context, node *Node) error {
	if node.State != Verifying {
		return nil
	}
	if err := s.locate(ctx, node, false); err != nil {
		return err
	}
	waits, err := s.objections(ctx, *node)
	if err != nil {
		return err
	}
	if len(waits) > 0 {
		node.StateReason = strings.Join(waits, "; ")
		return nil
	}
	return node.MoveTo(Move{To: Available})
}

// locate finds the node's ports on its site's fabrics, and takes what that makes of the node over into it.
func (s *Service) locate(ctx context.Context, node *Node, reviewed bool) error {
	if err := s.topo.LocateNode(ctx, node.ID, s.clock.Now(), reviewed); err != nil {
		return err
	}
	located, err := s.nodes.Node(ctx, node.ID)
	if err != nil {
		return err
	}
	node.Fabric, node.Leaf, node.Pod = located.Fabric, located.Leaf, located.Pod
	return nil
}

// objections lists what speaks against selling a node.
func (s *Service) objections(ctx context.Context, node Node) ([]string, error) {
	var out []string
	_, ports, err := s.nodes.Parts(ctx, node.ID)
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if p.Bay != NoBay && p.Switch.IsZero() {
			out = append(out, fmt.Sprintf("no fabric has reported port %s (%s)", p.GUID, p.Device))
		}
	}
	unclean, err := s.nodes.Unclean(ctx, node.ID)
	if err != nil {
		return nil, err
	}
	for _, h := range unclean {
		out = append(out, h.words())
	}
	conditions, err := s.nodes.Conditions(ctx, node.ID)
	if err != nil {
		return nil, err
	}
	for _, c := range conditions {
		if c.Class == protocol.PreventsAllocation {
			out = append(out, fmt.Sprintf("%s %s", c.Name, c.Device))
		}
	}
	changes, err := s.nodes.Changes(ctx, node.ID)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if c.State == Pending {
			out = append(out, c.Words())
		}
	}
	return out, nil
}

// ReportFabric takes what a subnet's manager sees: its switches and links, and which port hangs where. Nodes that waited for it
// may come to the market.
func (s *Service) ReportFabric(ctx context.Context, id ids.Fabric, report protocol.FabricInventory) error {
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.topo.MeetReports(ctx, true); err != nil {
			return err
		}
		fabric, err := s.places.Fabric(ctx, id)
		if err != nil {
			return err
		}
		fabric.Driver, fabric.ControllerVersion = report.Controller.Driver, report.Controller.Version
		fabric.Posture, fabric.ObservedAt = report.Posture, s.clock.Now()
		if report.Controller.MaxPKeysPerPort > 0 {
			fabric.MaxPKeysPerPort = report.Controller.MaxPKeysPerPort
		}
		fabric.PlannedPods = hasPlan(report.Topology)
		topology, err := s.arrange(ctx, fabric, report.Topology)
		if err != nil {
			return err
		}
		if err := s.topo.SaveReport(ctx, fabric, topology); err != nil {
			return err
		}
		if err := s.topo.LocateFabric(ctx, id, s.clock.Now()); err != nil {
			return err
		}
		return s.verifyFabric(ctx, id)
	})
	if err != nil {
		return fmt.Errorf("report fabric: %w", err)
	}
	return nil
}

// arrange is Arrange with what inventory knows.
func (s *Service) arrange(ctx context.Context, f Fabric, t protocol.Topology) (protocol.Topology, error) {
	switches, err := s.topo.Switches(ctx, f.ID)
	if err != nil {
		return t, err
	}
	ports, err := s.topo.KnownPorts(ctx, f.Site)
	if err != nil {
		return t, err
	}
	return Arrange(t, owners(ports), podsOf(switches)), nil
}

func (s *Service) verifyFabric(ctx context.Context, id ids.Fabric) error {
	waiting, err := s.nodes.Unverified(ctx, id)
	if err != nil {
		return err
	}
	for _, nodeID := range waiting {
		node, err := s.nodes.NodeForUpdate(ctx, nodeID)
		if err != nil {
			return err
		}
		if err := s.verify(ctx, &node); err != nil {
			return err
		}
		if err := s.nodes.UpdateNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}
