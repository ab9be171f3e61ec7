// Package ibsim runs a private InfiniBand simulator with a real OpenSM on it, and speaks to it. Nothing is left behind: the
// children die with this process, sockets live in the abstract namespace under a name of their own, and files stay in one
// directory.
//
// The simulator models subnet management only: no data traffic, no M_Key protection, no disabling of ports.
package ibsim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// smName is the netlist name of the subnet manager's own HCA; smGUID its node GUID, from the range of locally administered
// addresses so that no plan's GUID is hit. Its port's is one more.
const (
	smName             = "sm"
	smGUID             = protocol.GUID(0x02ffff0000000000)
	maxNameLength      = 31 // what the simulator's connect request can hold
	smPortGUID         = smGUID + 1
	portOfManagersHCA  = 1
	maxPortsOfOneHCA   = 8
	maxPortsOfOneNode  = 254
	firstNetlistSwitch = 0
)

// netlist is a topology in the simulator's words.
type netlist struct {
	text  string
	hosts map[protocol.GUID]plug // by port GUID
}

// plug is an HCA port in the simulator's words: "name"[port].
type plug struct {
	name string
	port int
}

func (p plug) String() string { return fmt.Sprintf("%q[%d]", p.name, p.port) }

// hca gathers the ports of one adapter, by number.
type hca struct {
	guid  protocol.GUID
	name  string
	ports map[int]protocol.TopologyPort
}

// newNetlist writes the topology down for the simulator and adds an HCA for the subnet manager. The simulator gives port n of
// an adapter the GUID node GUID + n, so it must be so in the topology as well.
func newNetlist(t protocol.Topology) (netlist, error) {
	if len(t.Switches) == 0 {
		return netlist{}, fmt.Errorf("write netlist: the topology has no switch")
	}
	cables, switchNames, err := cable(t)
	if err != nil {
		return netlist{}, fmt.Errorf("write netlist: %w", err)
	}
	adapters, err := adaptersOf(t)
	if err != nil {
		return netlist{}, fmt.Errorf("write netlist: %w", err)
	}
	hosts := map[protocol.GUID]plug{}
	var out bytes.Buffer
	for _, adapter := range adapters {
		if err := adapter.plugIn(cables, hosts); err != nil {
			return netlist{}, fmt.Errorf("write netlist: %w", err)
		}
	}
	ports := portCounts(t)
	leaf := managersLeaf(t, cables, ports)
	cables[leaf] = plug{smName, portOfManagersHCA}
	// The manager's HCA comes first: the simulator attaches clients there that do not say where.
	fmt.Fprintf(&out, "caguid=0x%x\nHca 1 %q\n[1]\t%v\n\n", uint64(smGUID), smName, plug{switchNames[leaf.guid], leaf.port})
	for _, s := range t.Switches {
		fmt.Fprintf(&out, "switchguid=0x%x\nSwitch %d %q\n", uint64(s.GUID), ports[s.GUID], switchNames[s.GUID])
		for number := 1; number <= ports[s.GUID]; number++ {
			if peer, ok := cables[socket{s.GUID, number}]; ok {
				fmt.Fprintf(&out, "[%d]\t%v\n", number, peer)
			}
		}
		out.WriteByte('\n')
	}
	for _, adapter := range adapters {
		adapter.write(&out, switchNames)
	}
	return netlist{text: out.String(), hosts: hosts}, nil
}

// socket is a port of a switch.
type socket struct {
	guid protocol.GUID
	port int
}

// cable joins the switches and names them.
func cable(t protocol.Topology) (map[socket]plug, map[protocol.GUID]string, error) {
	names := make(map[protocol.GUID]string, len(t.Switches))
	taken := map[string]bool{smName: true}
	for _, s := range t.Switches {
		if names[s.GUID] != "" {
			return nil, nil, fmt.Errorf("switch %v is listed twice", s.GUID)
		}
		names[s.GUID] = pickName(s.Name, s.GUID, taken)
	}
	cables := map[socket]plug{}
	join := func(at socket, to plug) error {
		if at.port < 1 || at.port > maxPortsOfOneNode {
			return fmt.Errorf("switch %v has no port %d", at.guid, at.port)
		}
		if other, busy := cables[at]; busy {
			return fmt.Errorf("port %d of switch %v is cabled to %v and %v", at.port, at.guid, other, to)
		}
		cables[at] = to
		return nil
	}
	for _, l := range t.Links {
		from, to := names[l.FromGUID], names[l.ToGUID]
		if from == "" || to == "" {
			return nil, nil, fmt.Errorf("link %v–%v: unknown switch", l.FromGUID, l.ToGUID)
		}
		if err := join(socket{l.FromGUID, l.FromPort}, plug{to, l.ToPort}); err != nil {
			return nil, nil, err
		}
		if err := join(socket{l.ToGUID, l.ToPort}, plug{from, l.FromPort}); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range t.Ports {
		if names[p.SwitchGUID] == "" {
			return nil, nil, fmt.Errorf("port %v hangs on unknown switch %v", p.GUID, p.SwitchGUID)
		}
		if p.SwitchPort < 1 || p.SwitchPort > maxPortsOfOneNode {
			return nil, nil, fmt.Errorf("port %v hangs on port %d of switch %v", p.GUID, p.SwitchPort, p.SwitchGUID)
		}
	}
	return cables, names, nil
}

// pickName uses the plan's own name where the simulator can take it, else the GUID.
func pickName(wish string, guid protocol.GUID, taken map[string]bool) string {
	name := wish
	if name == "" || len(name) > maxNameLength || taken[name] || strings.ContainsFunc(name, unsafeRune) {
		name = strings.TrimPrefix(guid.String(), "0x")
	}
	taken[name] = true
	return name
}

func unsafeRune(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
}

func adaptersOf(t protocol.Topology) ([]*hca, error) {
	taken := map[string]bool{smName: true}
	for _, s := range t.Switches {
		taken[s.Name] = true
	}
	byGUID := map[protocol.GUID]*hca{}
	var adapters []*hca
	for _, p := range t.Ports {
		adapter := byGUID[p.NodeGUID]
		if adapter == nil {
			adapter = &hca{guid: p.NodeGUID, name: pickName(p.Description, p.NodeGUID, taken), ports: map[int]protocol.TopologyPort{}}
			byGUID[p.NodeGUID] = adapter
			adapters = append(adapters, adapter)
		}
		number := int(p.GUID - p.NodeGUID) //nolint:gosec // bounded in the next line; a huge difference turns negative
		if p.GUID <= p.NodeGUID || number < 1 || number > maxPortsOfOneHCA {
			return nil, fmt.Errorf("port %v of adapter %v: the simulator wants the node's GUID plus the port's number", p.GUID, p.NodeGUID)
		}
		if _, double := adapter.ports[number]; double {
			return nil, fmt.Errorf("port %v is listed twice", p.GUID)
		}
		adapter.ports[number] = p
	}
	return adapters, nil
}

// plugIn puts the adapter's ports into the switches' sockets.
func (a *hca) plugIn(cables map[socket]plug, hosts map[protocol.GUID]plug) error {
	for number, p := range a.ports {
		at := socket{p.SwitchGUID, p.SwitchPort}
		if other, busy := cables[at]; busy {
			return fmt.Errorf("port %d of switch %v is cabled to %v and %v", at.port, at.guid, other, plug{a.name, number})
		}
		cables[at] = plug{a.name, number}
		hosts[p.GUID] = plug{a.name, number}
	}
	return nil
}

func (a *hca) write(out *bytes.Buffer, switchNames map[protocol.GUID]string) {
	most := 0
	for number := range a.ports {
		most = max(most, number)
	}
	fmt.Fprintf(out, "caguid=0x%x\nHca %d %q\n", uint64(a.guid), most, a.name)
	for number := 1; number <= most; number++ {
		if p, ok := a.ports[number]; ok {
			fmt.Fprintf(out, "[%d]\t%v\n", number, plug{switchNames[p.SwitchGUID], p.SwitchPort})
		}
	}
	out.WriteByte('\n')
}

// portCounts is how many ports each switch has: what the plan says, or more if something is cabled beyond.
func portCounts(t protocol.Topology) map[protocol.GUID]int {
	counts := make(map[protocol.GUID]int, len(t.Switches))
	for _, s := range t.Switches {
		counts[s.GUID] = s.Ports
	}
	for _, l := range t.Links {
		counts[l.FromGUID] = max(counts[l.FromGUID], l.FromPort)
		counts[l.ToGUID] = max(counts[l.ToGUID], l.ToPort)
	}
	for _, p := range t.Ports {
		counts[p.SwitchGUID] = max(counts[p.SwitchGUID], p.SwitchPort)
	}
	return counts
}

// managersLeaf finds a free port for the manager's HCA, on a leaf if possible, and adds a port to a switch that is full.
func managersLeaf(t protocol.Topology, cables map[socket]plug, ports map[protocol.GUID]int) socket {
	order := slices.Clone(t.Switches)
	slices.SortStableFunc(order, func(a, b protocol.Switch) int { return a.Level - b.Level })
	for _, s := range order {
		for number := ports[s.GUID]; number >= 1; number-- {
			if _, busy := cables[socket{s.GUID, number}]; !busy {
				return socket{s.GUID, number}
			}
		}
	}
	leaf := order[firstNetlistSwitch].GUID
	ports[leaf]++
	return socket{leaf, ports[leaf]}
}
