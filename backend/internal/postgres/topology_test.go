package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/inventory/netdiscover"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// cabling writes a netlist: two groups of leaves with rails each, below one spine. places are the leaves' group by machine's base GUID.
type cabling struct {
	places map[protocol.GUID]int
	groups int
}

const leafBase, spineGUID = protocol.GUID(0xa000), protocol.GUID(0xb000)

func leafOf(group, rail int) protocol.GUID { return leafBase + protocol.GUID(group*rails+rail) } //nolint:gosec // small

func (c cabling) netlist(except ...protocol.GUID) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "switchguid=%v\nSwitch 64 \"spine\"\n", spineGUID)
	for i := range c.groups * rails {
		fmt.Fprintf(&out, "[%d] \"leaf-%d-%d\"[64]\n", i+1, i/rails, i%rails)
	}
	for i := range c.groups * rails {
		fmt.Fprintf(&out, "switchguid=%v\nSwitch 64 \"leaf-%d-%d\"\n", leafOf(i/rails, i%rails), i/rails, i%rails)
	}
	for base, group := range c.places {
		for rail := range rails {
			guid := base + protocol.GUID(rail) //nolint:gosec // small
			if len(except) > 0 && except[0] == guid {
				continue
			}
			fmt.Fprintf(&out, "caguid=%v\nHca 1 \"m%x mlx5_%d\"\n[1](%v) \"leaf-%d-%d\"[%d]\n", guid, int(base), rail, guid, group, rail, int(base)>>8) //nolint:gosec // small
		}
	}
	return []byte(out.String())
}

// machineAt enrols a machine and returns its node.
func (s *stock) machineAt(t *testing.T, name string, base protocol.GUID) ids.Node {
	t.Helper()
	node, err := s.inventory.AddNode(t.Context(), s.Site, name, name)
	require.NoError(t, err)
	_, err = s.inventory.ReportNode(t.Context(), node.ID, machine(base))
	require.NoError(t, err)
	return node.ID
}

func (s *stock) place(t *testing.T, file []byte) inventory.TopologyImport {
	t.Helper()
	preview, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.NoError(t, err)
	require.False(t, preview.Applied)
	applied, err := s.inventory.ImportTopology(t.Context(), s.Fabric, file, preview.Digest)
	require.NoError(t, err)
	require.True(t, applied.Applied)
	require.Equal(t, preview.Diff, applied.Diff, "what was shown is what was done")
	return applied
}

func (s *stock) node(t *testing.T, id ids.Node) inventory.Detail {
	t.Helper()
	detail, err := s.inventory.Node(t.Context(), id)
	require.NoError(t, err)
	return detail
}

func (s *stock) lease(t *testing.T, node ids.Node) {
	t.Helper()
	s.allocate(t, s.Customer(t, "Acme"), node, s.InstanceType(t, "h100-sxm.8x.ndr", "h100-sxm-80gb.8", "bare_metal", 8), "[0,64)")
}

// heldSlots is an allocation with its lease.
type heldSlots struct {
	lease ids.Lease
	id    ids.Allocation
}

// allocate gives slots of the node to a new lease of the customer's.
func (s *stock) allocate(t *testing.T, c markettest.Customer, node ids.Node, instanceType ids.Instance, slots string) heldSlots {
	t.Helper()
	held := heldSlots{lease: s.Lease(t, c, instanceType, s.clock.Now(), s.clock.Now().Add(time.Hour)), id: ids.Make[ids.Allocation]()}
	s.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, created_at)
		VALUES ($1, $2, 'lease', $3, $4, '[2026-03-01Z,2026-03-09Z)', 'in_use', now())`, held.id, node, held.lease, slots)
	return held
}

func TestAFileBringsNodesToMarketWithLeafAndPod(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	first, second := s.machineAt(t, "n1", 0x100), s.machineAt(t, "n2", 0x200)
	require.Equal(t, inventory.Verifying, s.node(t, first).Node.State)
	file := cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0, 0x200: 1, 0x900: 1}}.netlist()

	preview, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.NoError(t, err)
	require.Equal(t, inventory.SeenInFile{Switches: 17, HCAs: 24, Links: 16, HostPorts: 24, KnownPorts: 16}, preview.Seen)
	require.Len(t, preview.Diff.Switches, 17)
	require.Len(t, preview.Diff.Links, 16)
	require.Len(t, preview.Diff.Ports, 16)
	require.Len(t, preview.Diff.Strangers, 8, "no node is invented for them")
	require.Equal(t, inventory.NodeDiff{Node: first, Name: "n1", LeafAfter: "leaf-0-0", PodAfter: "pod-1"}, preview.Diff.Nodes[0])
	require.Empty(t, s.node(t, first).LeafName, "a preview changes nothing")

	s.place(t, file)
	n1, n2 := s.node(t, first), s.node(t, second)
	require.Equal(t, []string{"leaf-0-0", "pod-1", "available"}, []string{n1.LeafName, n1.Node.Pod, string(n1.Node.State)})
	require.Equal(t, []string{"leaf-1-0", "pod-2", "available"}, []string{n2.LeafName, n2.Node.Pod, string(n2.Node.State)})
	require.Equal(t, "leaf-1-5", n2.Ports[5].SwitchName)
	again, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.NoError(t, err)
	require.True(t, again.Diff.Empty(), "%+v", again.Diff)
	_, switches, links, err := s.inventory.Fabric(t.Context(), s.Fabric)
	require.NoError(t, err)
	require.Len(t, switches, 17)
	require.Len(t, links, 16)
	nodes, err := s.inventory.Nodes(t.Context(), inventory.Filter{})
	require.NoError(t, err)
	require.Len(t, nodes, 2)
}

func TestAnImportThatWasReviewedOnAnotherStateIsStale(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	node := s.machineAt(t, "n1", 0x100)
	file := cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0}}.netlist()
	preview, err := s.inventory.PreviewTopology(ctx, s.Fabric, file)
	require.NoError(t, err)

	other := cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0, 0x900: 0}}.netlist()
	_, err = s.inventory.ImportTopology(ctx, s.Fabric, other, preview.Digest)
	require.Equal(t, fault.Stale, fault.KindOf(err), "another file")
	s.machineAt(t, "n9", 0x900)
	_, err = s.inventory.ImportTopology(ctx, s.Fabric, other, preview.Digest)
	require.Equal(t, fault.Stale, fault.KindOf(err))
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	_, err = s.inventory.ImportTopology(ctx, s.Fabric, file, preview.Digest)
	require.Equal(t, fault.Stale, fault.KindOf(err), "a manager reported meanwhile")
	require.Equal(t, "leaf-1", s.node(t, node).LeafName, "nothing was imported")
	_, err = s.inventory.PreviewTopology(ctx, ids.Make[ids.Fabric](), file)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestADefectiveFileChangesNothingAndSaysWhere(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	file := append(cabling{groups: 1}.netlist(), "caguid=0x5\nHca 1 \"x\"\n[1] \"leaf-0-0\"[64]\n"...)
	_, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.Equal(t, "topology-file", fault.CodeOf(err))
	require.ErrorContains(t, err, "line 29: \"x\"[1] is cabled to \"leaf-0-0\"[64], which is cabled to \"spine\"[1]")
	_, err = s.inventory.ImportTopology(t.Context(), s.Fabric, file, "")
	require.Equal(t, "topology-file", fault.CodeOf(err))
	_, switches, _, err := s.inventory.Fabric(t.Context(), s.Fabric)
	require.NoError(t, err)
	require.Empty(t, switches)
}

func TestAPortOfALeasedNodeMovesOnlyWhenAnAdminSaysSo(t *testing.T) {
	t.Parallel()
	for name, observe := range map[string]func(t *testing.T, s *stock, file []byte){
		"in a file": func(t *testing.T, s *stock, file []byte) {
			t.Helper()
			in := s.place(t, file)
			require.Contains(t, strings.Join(in.Warnings, ";"), "8 ports of leased nodes hang elsewhere")
			for _, p := range in.Diff.Ports {
				require.Equal(t, p.Port.NodeName == "leased", p.Review, p.Port.NodeName)
			}
		},
		"by the manager": func(t *testing.T, s *stock, file []byte) {
			t.Helper()
			require.NoError(t, s.inventory.ReportFabric(t.Context(), s.Fabric, reported(t, file)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := newStock(t), t.Context()
			free, leased := s.machineAt(t, "free", 0x100), s.machineAt(t, "leased", 0x200)
			s.place(t, cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0, 0x200: 0}}.netlist())
			s.lease(t, leased)
			moved := cabling{groups: 2, places: map[protocol.GUID]int{0x100: 1, 0x200: 1}}.netlist()

			for range 2 { // seen again, it is the same change
				observe(t, s, moved)
				require.Equal(t, "leaf-1-0", s.node(t, free).LeafName, "nobody has it")
				kept := s.node(t, leased)
				require.Equal(t, []string{"leaf-0-0", "leaf-0-3"}, []string{kept.LeafName, kept.Ports[3].SwitchName})
				require.Len(t, kept.Changes, 8)
				require.Equal(t, inventory.Change{
					What: "port 0x0000000000000200 place", Before: "leaf-0-0 port 2", After: "leaf-1-0 port 2", State: inventory.Pending, ObservedAt: s.clock.Now(),
				}, kept.Changes[len(kept.Changes)-1])
			}
			kept := s.node(t, leased)
			accepted, err := s.inventory.SettleChanges(ctx, leased, kept.Node.Version, inventory.ChangeAccepted)
			require.NoError(t, err)
			require.Equal(t, "leaf-1-0", accepted.LeafName, "the node's leaf goes with its port")
			require.Equal(t, "leaf-1-3", accepted.Ports[3].SwitchName)
			for _, c := range accepted.Changes {
				require.Equal(t, inventory.ChangeAccepted, c.State)
			}
		})
	}
}

// reported is what a manager that knows no plan says of the subnet in the file.
func reported(t *testing.T, file []byte) protocol.FabricInventory {
	t.Helper()
	graph, err := netdiscover.Parse(file)
	require.NoError(t, err)
	return protocol.FabricInventory{Controller: protocol.Controller{Driver: "opensm", Version: "1"}, Topology: graph.Topology()}
}

func TestAPortThatComesBackLeavesNothingToReview(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	leased := s.machineAt(t, "leased", 0x200)
	before := cabling{groups: 2, places: map[protocol.GUID]int{0x200: 0}}.netlist()
	s.place(t, before)
	s.lease(t, leased)
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, reported(t, cabling{groups: 2, places: map[protocol.GUID]int{0x200: 1}}.netlist())))
	require.Len(t, s.node(t, leased).Changes, 8)
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, reported(t, before)))
	require.Empty(t, s.node(t, leased).Changes)
}

func TestWhatIsMissingKeepsItsPlaceAndItsSwitch(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	node := s.machineAt(t, "n1", 0x100)
	s.place(t, cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0}}.netlist())
	lacking := cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0}}.netlist(0x105)
	in := s.place(t, lacking)
	require.Len(t, in.Diff.Missing, 1)
	require.Equal(t, protocol.GUID(0x105), in.Diff.Missing[0].GUID)
	require.Equal(t, "leaf-0-5", s.node(t, node).Ports[5].SwitchName)

	_, page, err := s.inventory.Topology(t.Context(), s.Fabric, ids.Switch{}, 100)
	require.NoError(t, err)
	hosts := map[string][]inventory.TopologyHost{}
	for _, w := range page {
		hosts[w.Name] = w.Hosts
	}
	require.True(t, hosts["leaf-0-5"][0].Absent)
	require.False(t, hosts["leaf-0-4"][0].Absent)

	// A file with one group only: the leaves of the other go, but the one that a missing port hangs on stays.
	other := s.place(t, []byte("switchguid=0xb000\nSwitch 64 \"spine\"\nswitchguid=0xc000\nSwitch 2 \"new\"\n[1] \"spine\"[1]\n"))
	require.Contains(t, strings.Join(other.Warnings, ";"), "8 ports that are on the fabric by inventory are not in the file")
	_, switches, links, err := s.inventory.Fabric(t.Context(), s.Fabric)
	require.NoError(t, err)
	require.Len(t, switches, 10, "spine, new, and the eight leaves that ports hang on")
	require.Len(t, links, 1)
	require.Equal(t, "leaf-0-0", s.node(t, node).LeafName)
	wrong, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, []byte("switchguid=0xdd\nSwitch 2 \"d\"\n"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(wrong.Warnings, ";"), "none of the fabric's 10 switches is in the file: it may be another fabric's")
}

func TestATopologyIsReadInPages(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	s.machineAt(t, "n1", 0x100)
	s.place(t, cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0, 0x900: 1}}.netlist())
	var names []string
	var after ids.Switch
	for {
		summary, page, err := s.inventory.Topology(t.Context(), s.Fabric, after, 6)
		require.NoError(t, err)
		require.Equal(t, []int{17, 16, 16, 8, 1, 2},
			[]int{summary.Switches, summary.Links, summary.Ports, summary.UnknownPorts, summary.Nodes, summary.Pods})
		if len(page) == 0 {
			break
		}
		for _, w := range page {
			names = append(names, w.Name)
			if w.Level == 2 {
				require.Len(t, w.Links, 16)
				require.Empty(t, w.Hosts)
				continue
			}
			require.Equal(t, []string{"spine"}, []string{w.Links[0].PeerName})
			require.Len(t, w.Hosts, 1)
			require.Equal(t, strings.HasPrefix(w.Name, "leaf-0"), w.Hosts[0].NodeName == "n1", "the other group's is of no node")
		}
		after = page[len(page)-1].ID
	}
	require.Len(t, names, 17)
	require.Equal(t, "spine", names[16], "leaves come first")
	_, _, err := s.inventory.Topology(t.Context(), ids.Make[ids.Fabric](), ids.Switch{}, 6)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestAFileWithoutSpeedsLeavesThoseThatAreKnown(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	file := cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0}}.netlist()
	report := reported(t, file)
	for i := range report.Topology.Ports {
		report.Topology.Ports[i].RateGbps = 400
	}
	for i := range report.Topology.Links {
		report.Topology.Links[i].RateGbps = 800
	}
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, report))
	require.True(t, s.place(t, file).Diff.Empty())
	_, page, err := s.inventory.Topology(ctx, s.Fabric, ids.Switch{}, 1)
	require.NoError(t, err)
	require.Equal(t, []int{400, 800}, []int{page[0].Hosts[0].RateGbps, page[0].Links[0].RateGbps})
}

func TestAnImportThatFailsLateChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	s.machineAt(t, "n1", 0x100)
	file := cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0}}.netlist()
	preview, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.NoError(t, err)
	err = s.db.WithinTx(t.Context(), func(ctx context.Context) error {
		if _, err := s.inventory.ImportTopology(ctx, s.Fabric, file, preview.Digest); err != nil {
			return err
		}
		return fault.New(fault.Internal, "test", "the audit cannot be written")
	})
	require.Error(t, err)
	again, err := s.inventory.PreviewTopology(t.Context(), s.Fabric, file)
	require.NoError(t, err)
	require.Equal(t, preview.Digest, again.Digest)
}

func TestATenantSeesTheWayUpFromItsOwnInstance(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	node := s.machineAt(t, "n1", 0x100)
	file := append(cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0}}.netlist(),
		"switchguid=0xc0\nSwitch 8 \"core\"\n[1] \"spine\"[60]\nswitchguid=0xb1\nSwitch 8 \"spine-b\"\n[1] \"core\"[2]\n[2] \"leaf-0-3\"[63]\n"+
			"switchguid=0xb2\nSwitch 8 \"spine-c\"\n[1] \"core\"[3]\n[2] \"leaf-c\"[1]\nswitchguid=0xa1\nSwitch 8 \"leaf-c\"\ncaguid=0x77\nHca 1 \"x\"\n[1] \"leaf-c\"[2]\n"...)
	s.place(t, file)
	customer := s.Customer(t, "Acme")
	one := s.InstanceType(t, "h100-sxm.1x.ndr", "h100-sxm-80gb.8", "bare_metal", 1)
	held, part := s.allocate(t, customer, node, one, "[0,8)"), s.allocate(t, customer, node, one, "[24,32)")
	reads := postgres.NewLeaseReads(s.db)
	of := func(ctx context.Context, a heldSlots) (found []lease.NodeTopology) {
		require.NoError(t, s.db.WithinTx(ctx, func(ctx context.Context) (err error) {
			found, err = reads.Topology(ctx, a.lease, a.id)
			return err
		}))
		return found
	}
	own := tenant.WithActor(ctx, tenant.Actor{Org: customer.Org})
	first, fourth := of(own, held), of(ctx, part)
	require.Len(t, first, 1)
	require.Equal(t, []string{"n1", "ib0", "pod-1"}, []string{first[0].NodeName, first[0].FabricName, first[0].Pod})
	require.Len(t, first[0].Ports, 1, "the port of its bay only")
	require.Equal(t, protocol.GUID(0x100), first[0].Ports[0].GUID)
	words := func(n lease.NodeTopology) (out []string) {
		for _, w := range n.Switches {
			out = append(out, fmt.Sprintf("%d %s", w.Level, w.Name))
		}
		return out
	}
	require.Equal(t, []string{"1 leaf-0-0", "2 spine", "3 core"}, words(first[0]))
	require.Equal(t, []string{"1 leaf-0-3", "2 spine", "2 spine-b", "3 core"}, words(fourth[0]))
	require.Equal(t, []ids.Switch{first[0].Switches[0].ID, first[0].Switches[1].ID, first[0].Switches[2].ID}, first[0].Ports[0].Chain)
	require.Equal(t, first[0].Ports[0].Leaf, first[0].Ports[0].Chain[0])

	require.Empty(t, of(ctx, heldSlots{lease: part.lease, id: held.id}), "an instance of another lease")
	stranger := tenant.WithActor(ctx, tenant.Actor{Org: s.Customer(t, "Bolt").Org})
	require.Empty(t, of(stranger, held))
	s.Exec(t, "UPDATE allocation SET state = 'released', released_at = now() WHERE id = $1", held.id)
	require.Empty(t, of(ctx, held), "what the ports do after its time is somebody else's")
}

func TestPodsAreWorkedOutAgainWhenAMachineComesAfterItsFabric(t *testing.T) {
	t.Parallel()
	for name, accept := range map[string]bool{"by itself": true, "when an admin accepts it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := newStock(t), t.Context()
			s.Exec(t, "UPDATE site SET auto_accept = $1", accept)
			// A simulator's descriptions have no machine's name: nothing says that the leaves belong together.
			file := strings.NewReplacer("m100 mlx5", "h100-", "m200 mlx5", "h200-").Replace(string(cabling{groups: 2, places: map[protocol.GUID]int{0x100: 0, 0x200: 1}}.netlist()))
			require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, reported(t, []byte(file))))
			summary, _, err := s.inventory.Topology(ctx, s.Fabric, ids.Switch{}, 1)
			require.NoError(t, err)
			require.Equal(t, 16, summary.Pods)

			nodes := []ids.Node{s.machineAt(t, "n1", 0x100), s.machineAt(t, "n2", 0x200)}
			if !accept {
				for _, node := range nodes {
					_, err := s.inventory.SetState(ctx, node, s.node(t, node).Node.Version, inventory.Move{To: inventory.Verifying})
					require.NoError(t, err)
				}
			}
			summary, _, err = s.inventory.Topology(ctx, s.Fabric, ids.Switch{}, 1)
			require.NoError(t, err)
			require.Equal(t, 2, summary.Pods)
			first, second := s.node(t, nodes[0]).Node, s.node(t, nodes[1]).Node
			require.NotEmpty(t, first.Pod)
			require.NotEqual(t, first.Pod, second.Pod)
			_, switches, _, err := s.inventory.Fabric(ctx, s.Fabric)
			require.NoError(t, err)
			for _, w := range switches {
				if w.ID == first.Leaf {
					require.Equal(t, first.Pod, w.Pod)
				}
			}
		})
	}
}

func TestAManagersOwnPodsAreNotWorkedOutAgain(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	report := reported(t, cabling{groups: 1, places: map[protocol.GUID]int{0x100: 0}}.netlist())
	for i := range report.Topology.Switches {
		report.Topology.Switches[i].Pod = fmt.Sprintf("row-%d", i)
	}
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, report))
	node := s.machineAt(t, "n1", 0x100)
	summary, _, err := s.inventory.Topology(ctx, s.Fabric, ids.Switch{}, 1)
	require.NoError(t, err)
	require.Equal(t, 9, summary.Pods)
	require.Regexp(t, "^row-", s.node(t, node).Node.Pod)
}
