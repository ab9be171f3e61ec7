package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/inventory"
)

// steps is the state table once more, in other words: what is not here is refused.
func steps() map[inventory.State]string {
	return map[inventory.State]string{
		inventory.Discovered:  "verifying quarantined retired",
		inventory.Verifying:   "available maintenance quarantined retired",
		inventory.Available:   "maintenance quarantined",
		inventory.Maintenance: "available verifying quarantined retired",
		inventory.Quarantined: "verifying maintenance quarantined retired",
		inventory.Retired:     "",
	}
}

func TestEveryStepOfANodeIsInTheTableOrRefused(t *testing.T) {
	t.Parallel()
	for _, from := range inventory.States() {
		allowed, listed := steps()[from]
		require.True(t, listed, "state %s has no row", from)
		for _, to := range inventory.States() {
			node := inventory.Node{State: from, StateReason: "was", StateExit: inventory.Retest}
			err := node.MoveTo(inventory.Move{To: to, Reason: "why", Exit: inventory.Retest})
			if contains(allowed, string(to)) {
				require.NoError(t, err, "%s → %s", from, to)
				require.Equal(t, to, node.State)
				continue
			}
			require.Equal(t, "node-state", fault.CodeOf(err), "%s → %s", from, to)
			require.Equal(t, from, node.State)
		}
	}
}

func TestAProviderMayOnlyTakeItsNodesOffTheMarketAndHaveThemTested(t *testing.T) {
	t.Parallel()
	for _, from := range inventory.States() {
		for _, to := range inventory.States() {
			may := to == inventory.Maintenance && (from == inventory.Available || from == inventory.Verifying) ||
				to == inventory.Verifying && from == inventory.Maintenance
			err := inventory.Permit(inventory.Move{To: to, ByProvider: true}, from)
			require.Equal(t, may, err == nil, "%s → %s", from, to)
			if !may {
				require.Equal(t, "operator-only", fault.CodeOf(err))
			}
			require.NoError(t, inventory.Permit(inventory.Move{To: to}, from), "the operator")
		}
	}
}

func contains(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

func TestAQuarantineNeedsAReasonAndAnExit(t *testing.T) {
	t.Parallel()
	for _, m := range []inventory.Move{{Exit: inventory.Repair}, {Reason: "dirty"}, {Reason: "dirty", Exit: "hope"}} {
		m.To = inventory.Quarantined
		node := inventory.Node{State: inventory.Available}
		require.Equal(t, "quarantine-reason", fault.CodeOf(node.MoveTo(m)))
		require.Equal(t, inventory.Available, node.State)
	}
}

func TestAQuarantineIsLeftByItsExitOnly(t *testing.T) {
	t.Parallel()
	ways := map[inventory.Exit]string{inventory.Retest: "verifying maintenance retired", inventory.Repair: "maintenance retired", inventory.Retire: "retired"}
	for exit, allowed := range ways {
		for _, to := range []inventory.State{inventory.Verifying, inventory.Maintenance, inventory.Retired} {
			node := inventory.Node{State: inventory.Quarantined, StateReason: "dirty", StateExit: exit}
			require.Equal(t, contains(allowed, string(to)), node.MoveTo(inventory.Move{To: to}) == nil, "%s by %s", to, exit)
		}
	}
}

func gpu(address string, numa int) protocol.GPU {
	return protocol.GPU{UUID: "GPU-" + address, Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", MemoryBytes: 81559 << 20, PCIAddress: address, NUMANode: numa}
}

func hca(device, address string, numa int, guid protocol.GUID, layer string) protocol.HCA {
	return protocol.HCA{Device: device, PCIAddress: address, NUMANode: numa, NodeGUID: guid, Ports: []protocol.HCAPort{{Number: 1, GUID: guid, LinkLayer: layer}}}
}

// dgx reports a machine as NVIDIA's own is wired: eight rails, two storage adapters, an Ethernet one; in the kernel's disorder.
func dgx() protocol.NodeInventory {
	n := protocol.NodeInventory{}
	gpus := []string{"1b", "43", "52", "61", "9d", "c3", "d1", "df"}
	hcas := []string{"18", "40", "4f", "5e", "9a", "c0", "ce", "dc"}
	for i := range gpus {
		at := (i*5 + 3) % 8
		n.GPUs = append(n.GPUs, gpu("0000:"+gpus[at]+":00.0", at/4))
		n.HCAs = append(n.HCAs, hca(fmt.Sprintf("mlx5_%d", at), "0000:"+hcas[at]+":00.0", at/4, protocol.GUID(at+1), "InfiniBand"))
	}
	n.HCAs = append(n.HCAs, hca("mlx5_s0", "0000:29:00.0", 0, 100, "InfiniBand"), hca("mlx5_s1", "0000:aa:00.0", 1, 101, "InfiniBand"),
		hca("mlx5_bond_0", "0000:bb:00.0", 1, 102, "Ethernet"))
	return n
}

func TestBaysAreNumberedByPCIAddressAndFindTheirAdapters(t *testing.T) {
	t.Parallel()
	h := inventory.Recognise(dgx())
	require.Empty(t, h.Problems)
	require.Equal(t, "h100-sxm-80gb.8", h.Key)
	require.Equal(t, 64, h.Slots())
	require.True(t, h.HCAPerGPU)
	require.Equal(t, catalog.BareMetal, h.Mode)
	require.Len(t, h.Ports, 10, "the Ethernet port is not on a fabric")
	for i, g := range h.GPUs {
		require.Equal(t, i, g.Bay)
	}
	require.Equal(t, "0000:1b:00.0", h.GPUs[0].PCIAddress)
	rails := map[int]bool{}
	for _, p := range h.Ports {
		require.False(t, rails[p.Rail], "rails are distinct")
		rails[p.Rail] = true
		if p.GUID >= 100 {
			require.Equal(t, inventory.NoBay, p.Bay, p.Device)
			continue
		}
		require.EqualValues(t, p.GUID-1, p.Bay, p.Device)
		require.Equal(t, p.Bay, p.Rail)
	}
}

func TestTheOrderOfAReportDecidesNothing(t *testing.T) {
	t.Parallel()
	want := inventory.Recognise(dgx())
	rapid.Check(t, func(t *rapid.T) {
		report := dgx()
		report.GPUs = rapid.Permutation(report.GPUs).Draw(t, "gpus")
		report.HCAs = rapid.Permutation(report.HCAs).Draw(t, "hcas")
		got := inventory.Recognise(report)
		for i := range want.GPUs {
			require.Equal(t, want.GPUs[i].UUID, got.GPUs[i].UUID)
		}
		for i := range want.Ports {
			require.Equal(t, want.Ports[i].GUID, got.Ports[i].GUID)
			require.Equal(t, want.Ports[i].Bay, got.Ports[i].Bay)
		}
	})
}

func TestWhatIsNotKnownOrMixedIsNotSold(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(n *protocol.NodeInventory){
		"an unknown model":      func(n *protocol.NodeInventory) { n.GPUs[1].Model = "NVIDIA H900" },
		"a mix":                 func(n *protocol.NodeInventory) { n.GPUs[1].Model = "NVIDIA A100-SXM4-80GB" },
		"one UUID on two cards": func(n *protocol.NodeInventory) { n.GPUs[1].UUID = n.GPUs[0].UUID },
		"one GUID on two ports": func(n *protocol.NodeInventory) { n.HCAs[1].Ports[0].GUID = n.HCAs[0].Ports[0].GUID },
		"no GPU at all":         func(n *protocol.NodeInventory) { n.GPUs = nil },
	} {
		report := dgx()
		spoil(&report)
		h := inventory.Recognise(report)
		require.NotEmpty(t, h.Problems, name)
		require.Empty(t, h.Key, name)
	}
}

func TestAMachineThatSharesItsAdaptersIsNotSoldByTheGPU(t *testing.T) {
	t.Parallel()
	report := dgx()
	report.HCAs = report.HCAs[:4]
	require.False(t, inventory.Recognise(report).HCAPerGPU)
}

func TestSlicedAndLonelyMachinesAreShared(t *testing.T) {
	t.Parallel()
	sliced := dgx()
	sliced.GPUs[0].MIGEnabled = true
	require.Equal(t, catalog.Shared, inventory.Recognise(sliced).Mode)
	lonely := dgx()
	lonely.HCAs = nil
	require.Equal(t, catalog.Shared, inventory.Recognise(lonely).Mode)
}

func TestTheSameReportHasNoDifference(t *testing.T) {
	t.Parallel()
	require.Empty(t, inventory.Compare(dgx(), dgx(), time.Now()))
	other := dgx()
	other.HCAs[0].Ports[0].State, other.HCAs[0].Ports[0].LID = "DOWN", 77
	require.Empty(t, inventory.Compare(dgx(), other, time.Now()), "the weather is no change of hardware")
	other.HCAs[0].Ports[0].GUID = 999
	changes := inventory.Compare(dgx(), other, time.Now())
	require.Len(t, changes, 1)
	require.Equal(t, "hca mlx5_3 port 1 guid", changes[0].What)
}

func FuzzRecogniseNeverPanics(f *testing.F) {
	f.Add("0000:1b:00.0", "0000:18:00.0", 0, int64(81559<<20))
	f.Add("", "x", -1, int64(0))
	f.Fuzz(func(t *testing.T, gpuAddress, hcaAddress string, numa int, memory int64) {
		report := dgx()
		report.GPUs[0].PCIAddress, report.GPUs[0].NUMANode, report.GPUs[0].MemoryBytes = gpuAddress, numa, memory
		report.HCAs[0].PCIAddress, report.HCAs[0].NUMANode = hcaAddress, numa
		h := inventory.Recognise(report)
		require.Len(t, h.GPUs, len(report.GPUs))
	})
}
