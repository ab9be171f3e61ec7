package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

// stock is a database with an empty site, and the services that fill it.
type stock struct {
	*markettest.Market
	db        *postgres.DB
	clock     *clock.Fake
	inventory *inventory.Service
	catalog   *catalog.Service
}

func newStock(t *testing.T) *stock {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 8)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	now := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	repo := postgres.NewInventory(db)
	return &stock{
		Market: m, db: db, clock: now, inventory: inventory.New(db, repo, repo, repo, now), catalog: catalog.New(db, postgres.NewCatalog(db), now),
	}
}

const rails = 8

// machine reports an H100 node whose GPUs and adapters sit next to each other, with GUIDs from base up.
func machine(base protocol.GUID) protocol.NodeInventory {
	n := protocol.NodeInventory{Hostname: "h100", Serial: "S1", Manufacturer: "Acme", Product: "X8", CPUCores: 112, MemoryBytes: 2 << 40}
	for i := range rails {
		bus := 0x10 + 0x10*i
		n.GPUs = append(n.GPUs, protocol.GPU{
			UUID: "GPU-" + (base + protocol.GUID(i)).String(), Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", MemoryBytes: 81559 << 20, MIGCapable: true,
			PCIAddress: pci(bus), NUMANode: i / 4, Serial: "G", VBIOS: "96.00",
		})
		n.HCAs = append(n.HCAs, protocol.HCA{
			Device: "mlx5_" + string(rune('0'+i)), NodeGUID: base + protocol.GUID(i), PCIAddress: pci(bus + 1), NUMANode: i / 4, Firmware: "28.39",
			Ports: []protocol.HCAPort{{Number: 1, GUID: base + protocol.GUID(i), LinkLayer: "InfiniBand", State: "ACTIVE", RateGbps: 400}},
		})
	}
	return n
}

func pci(bus int) string {
	const digits = "0123456789abcdef"
	return "0000:" + string([]byte{digits[bus>>4], digits[bus&15]}) + ":00.0"
}

// subnet reports one leaf that all the ports hang on.
func subnet(bases ...protocol.GUID) protocol.FabricInventory {
	f := protocol.FabricInventory{Controller: protocol.Controller{Driver: "sim", Version: "1", MaxPKeysPerPort: 30}}
	f.Topology.Switches = []protocol.Switch{{GUID: 0xa1, Name: "leaf-1", Ports: 64, Level: 1, Pod: "pod-a"}, {GUID: 0xb1, Name: "spine-1", Ports: 64, Level: 2}}
	f.Topology.Links = []protocol.Link{{FromGUID: 0xa1, FromPort: 60, ToGUID: 0xb1, ToPort: 1, RateGbps: 800}}
	port := 1
	for _, base := range bases {
		for i := range rails {
			f.Topology.Ports = append(f.Topology.Ports, protocol.TopologyPort{GUID: base + protocol.GUID(i), NodeGUID: base + protocol.GUID(i), SwitchGUID: 0xa1, SwitchPort: port})
			port++
		}
	}
	return f
}

func TestARecognisedMachineComesToMarketOnceItsFabricIsSeen(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	node, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	again, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	require.Equal(t, node.ID, again.ID, "enrolling again finds the same node")

	reply, err := s.inventory.ReportNode(ctx, node.ID, machine(0x100))
	require.NoError(t, err)
	require.Equal(t, "verifying", reply.State)
	detail, err := s.inventory.Node(ctx, node.ID)
	require.NoError(t, err)
	require.Contains(t, detail.Node.StateReason, "no fabric has reported port 0x0000000000000100")

	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	detail, err = s.inventory.Node(ctx, node.ID)
	require.NoError(t, err)
	require.Equal(t, inventory.Available, detail.Node.State)
	require.Empty(t, detail.Node.StateReason)
	require.Equal(t, "h100-sxm-80gb.8", detail.Node.Hardware)
	require.Equal(t, 64, detail.Node.Slots)
	require.Equal(t, s.Fabric, detail.Node.Fabric)
	require.Equal(t, "pod-a", detail.Node.Pod)
	require.Equal(t, "leaf-1", detail.LeafName)
	require.True(t, detail.Node.HCAPerGPU)
	require.Len(t, detail.GPUs, 8)
	require.Len(t, detail.Ports, 8)
	require.Equal(t, "leaf-1", detail.Ports[3].SwitchName)
	require.Equal(t, 3, detail.Ports[3].Bay)

	fabric, switches, links, err := s.inventory.Fabric(ctx, s.Fabric)
	require.NoError(t, err)
	require.Equal(t, 30, fabric.MaxPKeysPerPort)
	require.Len(t, switches, 2)
	require.Len(t, links, 1)
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)), "the same report again changes nothing")
}

func TestTheFabricMayBeSeenFirst(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	node, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	reply, err := s.inventory.ReportNode(ctx, node.ID, machine(0x100))
	require.NoError(t, err)
	require.Equal(t, "available", reply.State)
}

func TestADifferenceIsAnEventAndNeverSilentlyAccepted(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	node, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	_, err = s.inventory.ReportNode(ctx, node.ID, machine(0x100))
	require.NoError(t, err)

	changed := machine(0x100)
	changed.GPUs[2].UUID, changed.HCAs[1].Firmware = "GPU-other", "28.40"
	changed.GPUs = changed.GPUs[:7]
	for range 2 { // reported again, it is the same event
		reply, err := s.inventory.ReportNode(ctx, node.ID, changed)
		require.NoError(t, err)
		require.Contains(t, reply.Changes, `hca mlx5_1 firmware: "28.39" became "28.40"`)
		require.Contains(t, reply.Changes, `gpu 0000:80:00.0 serial: "G" became "gone"`)
	}
	detail, err := s.inventory.Node(ctx, node.ID)
	require.NoError(t, err)
	require.Equal(t, "GPU-0x0000000000000102", detail.GPUs[2].UUID, "what was accepted stays the truth")
	require.Len(t, detail.GPUs, 8)
	pending := len(detail.Changes)
	require.Equal(t, 6, pending, "UUID, firmware, and four facts of the lost GPU")

	_, err = s.inventory.SettleChanges(ctx, node.ID, detail.Node.Version+1, inventory.ChangeAccepted)
	require.Equal(t, fault.Stale, fault.KindOf(err))
	detail, err = s.inventory.SettleChanges(ctx, node.ID, detail.Node.Version, inventory.ChangeAccepted)
	require.NoError(t, err)
	require.Equal(t, "GPU-other", detail.GPUs[2].UUID)
	require.Len(t, detail.GPUs, 7)
	require.Equal(t, "h100-sxm-80gb.7", detail.Node.Hardware, "which no type is sold on")
}

func TestADifferenceThatWentAwayByItselfKeepsNoNodeOffTheMarket(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	node, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	without := machine(0x100)
	without.GPUs = without.GPUs[:7]
	for _, report := range []protocol.NodeInventory{machine(0x100), without, machine(0x100), without, machine(0x100)} {
		_, err = s.inventory.ReportNode(ctx, node.ID, report)
		require.NoError(t, err)
	}
	detail, err := s.inventory.Node(ctx, node.ID)
	require.NoError(t, err)
	require.NotEmpty(t, detail.Changes, "that it happened stays known")
	for _, c := range detail.Changes {
		require.Equal(t, inventory.Withdrawn, c.State, c.Words())
	}
	detail, err = s.inventory.SetState(ctx, node.ID, detail.Node.Version, inventory.Move{To: inventory.Maintenance})
	require.NoError(t, err)
	detail, err = s.inventory.SetState(ctx, node.ID, detail.Node.Version, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.Equal(t, inventory.Available, detail.Node.State, detail.Node.StateReason)
}

func TestAGUIDThatTwoMachinesClaimKeepsTheSecondOffTheMarket(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	honest, err := s.inventory.AddNode(ctx, s.Site, "honest", "S1")
	require.NoError(t, err)
	_, err = s.inventory.ReportNode(ctx, honest.ID, machine(0x100))
	require.NoError(t, err)
	thief, err := s.inventory.AddNode(ctx, s.Site, "thief", "S2")
	require.NoError(t, err)
	reply, err := s.inventory.ReportNode(ctx, thief.ID, machine(0x100))
	require.NoError(t, err)
	require.Equal(t, "discovered", reply.State)
	detail, err := s.inventory.Node(ctx, thief.ID)
	require.NoError(t, err)
	require.Contains(t, detail.Node.StateReason, "is claimed by node honest as well")
	_, err = s.inventory.SetState(ctx, thief.ID, detail.Node.Version, inventory.Move{To: inventory.Verifying})
	require.Equal(t, "node-not-recognised", fault.CodeOf(err))
}

func TestWithoutAutoAcceptAnAdminDecides(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	s.Exec(t, "UPDATE site SET auto_accept = false")
	require.NoError(t, s.inventory.ReportFabric(ctx, s.Fabric, subnet(0x100)))
	node, err := s.inventory.AddNode(ctx, s.Site, "h100-1", "S1")
	require.NoError(t, err)
	reply, err := s.inventory.ReportNode(ctx, node.ID, machine(0x100))
	require.NoError(t, err)
	require.Equal(t, "discovered", reply.State)
	detail, err := s.inventory.SetState(ctx, node.ID, node.Version, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.Equal(t, inventory.Available, detail.Node.State)

	detail, err = s.inventory.SetMode(ctx, node.ID, detail.Node.Version, catalog.Shared)
	require.NoError(t, err)
	_, err = s.inventory.ReportNode(ctx, node.ID, machine(0x100))
	require.NoError(t, err)
	require.NoError(t, s.inventory.Quarantine(ctx, node.ID, "wipe failed", inventory.Retest))
	list, err := s.inventory.Nodes(ctx, inventory.Filter{State: inventory.Quarantined, Site: s.Site})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, catalog.Shared, list[0].Node.Mode, "an admin's choice outlives reports")
	require.Equal(t, "wipe failed", list[0].Node.StateReason)
	rest, err := s.inventory.Nodes(ctx, inventory.Filter{After: detail.Node.ID})
	require.NoError(t, err)
	require.Empty(t, rest)
}

func TestOfferingTheDefaultsTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	s, ctx := newStock(t), t.Context()
	for range 2 {
		require.NoError(t, s.catalog.Offer(ctx, s.Site, catalog.Defaults(catalog.SimulatedPace(), s.clock.Now())))
	}
	types, err := s.catalog.Types(ctx)
	require.NoError(t, err)
	require.Len(t, types, len(catalog.Defaults(catalog.SimulatedPace(), s.clock.Now())))
	prices, err := s.catalog.Prices(ctx, "a100-sxm.mig-2g.20gb", s.Site)
	require.NoError(t, err)
	require.Len(t, prices, 1)
	for _, listed := range types {
		if listed.Name == "a100-sxm.mig-2g.20gb" {
			require.Equal(t, []int{0, 2, 4}, listed.BayStarts)
			require.Equal(t, 6*time.Second, listed.Lead)
		}
	}
	s.clock.Advance(time.Hour)
	next := prices[0]
	next.Rate.Micros, next.ValidFrom = 500_000, s.clock.Now().Add(time.Hour)
	require.NoError(t, s.catalog.Reprice(ctx, next))
	prices, err = s.catalog.Prices(ctx, "a100-sxm.mig-2g.20gb", s.Site)
	require.NoError(t, err)
	require.Len(t, prices, 2)
	require.Equal(t, prices[0].ValidFrom, prices[1].ValidTo, "versions follow each other without a gap or an overlap")
	_, err = s.catalog.Prices(ctx, "no-such-type", ids.Site{})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}
