package rdma_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

// tree is a sysfs of our own making, in the form that the kernel's mlx5 driver gives it.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) *tree {
	t.Helper()
	tr := &tree{t: t, root: filepath.Join(t.TempDir(), "infiniband")}
	require.NoError(t, os.MkdirAll(tr.root, 0o755))
	return tr
}

func (tr *tree) write(path, content string) {
	tr.t.Helper()
	full := filepath.Join(tr.root, path)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(tr.t, os.WriteFile(full, []byte(content+"\n"), 0o644))
}

// adapter makes mlx5_n with the node GUID 0x0002c9030030n000 and one port with the next GUID.
func (tr *tree) adapter(n int, linkLayer string) {
	tr.t.Helper()
	device := fmt.Sprintf("mlx5_%d", n)
	pci := filepath.Join(filepath.Dir(tr.root), "devices", "pci0000:15", fmt.Sprintf("0000:1%d:00.0", n))
	require.NoError(tr.t, os.MkdirAll(pci, 0o755))
	require.NoError(tr.t, os.WriteFile(filepath.Join(pci, "numa_node"), []byte("1\n"), 0o644))
	for path, content := range map[string]string{
		"node_guid": fmt.Sprintf("0002:c903:0030:%d000", n), "fw_ver": "28.39.1002", "board_id": "MT_0000000838",
		"ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp", "ports/1/rate": "400 Gb/sec (4X NDR)", "ports/1/link_layer": linkLayer,
		"ports/1/lid": "0x1b", "ports/1/sm_lid": "0x1", "ports/1/gids/0": fmt.Sprintf("fe80:0000:0000:0000:0002:c903:0030:%d001", n),
		"ports/1/counters/port_rcv_data": "1000", "ports/1/counters/port_xmit_data": "2000", "ports/1/counters/link_downed": "5",
		"ports/1/counters/symbol_error": "7", "ports/1/counters/port_rcv_constraint_errors": "0", "ports/1/counters/port_xmit_constraint_errors": "0",
	} {
		tr.write(filepath.Join(device, path), content)
	}
	for i := range 128 {
		tr.write(fmt.Sprintf("%s/ports/1/pkeys/%d", device, i), "0x0000")
	}
	require.NoError(tr.t, os.Symlink(pci, filepath.Join(tr.root, device, "device")))
}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func (tr *tree) driver() (*rdma.Sysfs, *clock) {
	c := &clock{now: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)}
	return rdma.NewSysfs(tr.root, c.Now), c
}

const portGUID = protocol.GUID(0x0002c90300300001)

func TestAdaptersAreReadAsTheKernelShowsThem(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(1, "Ethernet")
	tr.adapter(0, "InfiniBand")
	tr.write("not_an_adapter/file", "x")
	d, _ := tr.driver()
	hcas, err := d.Inventory(t.Context())
	require.NoError(t, err)
	require.Len(t, hcas, 2)
	require.Equal(t, protocol.HCA{
		Device: "mlx5_0", NodeGUID: 0x0002c90300300000, BoardID: "MT_0000000838", Firmware: "28.39.1002", PCIAddress: "0000:10:00.0", NUMANode: 1,
		Ports: []protocol.HCAPort{{
			Number: 1, GUID: portGUID, LinkLayer: "InfiniBand", State: "ACTIVE", PhysicalState: "LinkUp", RateGbps: 400, Width: "4X", LID: 27, SMLID: 1,
		}},
	}, hcas[0])
}

func TestAMachineWithoutAdaptersHasNone(t *testing.T) {
	t.Parallel()
	d := rdma.NewSysfs(filepath.Join(t.TempDir(), "absent"), time.Now)
	hcas, err := d.Inventory(t.Context())
	require.NoError(t, err)
	require.Empty(t, hcas)
	_, err = d.PKeys(t.Context(), portGUID)
	require.ErrorIs(t, err, rdma.ErrNotFound)
}

func TestATableIsReadInOrderWithItsEndCut(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	tr.write("mlx5_0/ports/1/pkeys/0", "0x8012")
	tr.write("mlx5_0/ports/1/pkeys/2", "0x7fff")
	tr.write("mlx5_0/ports/1/pkeys/10", "0xffff")
	d, _ := tr.driver()
	table, err := d.PKeys(t.Context(), portGUID)
	require.NoError(t, err)
	require.True(t, table.Readable)
	require.Equal(t, "sysfs", table.Source)
	require.Equal(t, []protocol.PKey{0x8012, 0, 0x7fff, 0, 0, 0, 0, 0, 0, 0, 0xffff}, table.Keys)
}

func TestATableThatCannotBeReadWholeIsUnknownAndNeverClear(t *testing.T) {
	t.Parallel()
	spoil := map[string]func(*tree){
		"garbage entry":  func(tr *tree) { tr.write("mlx5_0/ports/1/pkeys/3", "none") },
		"too large":      func(tr *tree) { tr.write("mlx5_0/ports/1/pkeys/3", "0x18012") },
		"strange name":   func(tr *tree) { tr.write("mlx5_0/ports/1/pkeys/x", "0x8012") },
		"missing index":  func(tr *tree) { require.NoError(tr.t, os.Remove(filepath.Join(tr.root, "mlx5_0/ports/1/pkeys/5"))) },
		"no table":       func(tr *tree) { require.NoError(tr.t, os.RemoveAll(filepath.Join(tr.root, "mlx5_0/ports/1/pkeys"))) },
		"entry is a dir": func(tr *tree) { tr.write("mlx5_0/ports/1/pkeys/128/x", "0") },
	}
	for name, f := range spoil {
		tr := newTree(t)
		tr.adapter(0, "InfiniBand")
		f(tr)
		d, _ := tr.driver()
		table, err := d.PKeys(t.Context(), portGUID)
		require.NoError(t, err, name)
		require.False(t, table.Readable, name)
		require.Empty(t, table.Keys, name)
		require.NotEmpty(t, table.Detail, name)
	}
}

func TestAPortWithoutAGUIDIsNobodys(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	tr.write("mlx5_0/ports/1/gids/0", "garbage")
	d, _ := tr.driver()
	_, err := d.PKeys(t.Context(), 0)
	require.ErrorIs(t, err, rdma.ErrNotFound)
}

func names(t *testing.T, d rdma.Driver) []string {
	t.Helper()
	conditions, err := d.Health(t.Context())
	require.NoError(t, err)
	out := []string{}
	for _, c := range conditions {
		out = append(out, c.Name)
	}
	return out
}

func TestPortsThatAreDownAreAConditionUnlessSwitchedOffOrOnEthernet(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	tr.adapter(1, "Ethernet")
	tr.write("mlx5_1/ports/1/state", "1: DOWN")
	d, c := tr.driver()
	require.Empty(t, names(t, d))
	tr.write("mlx5_0/ports/1/state", "1: DOWN")
	tr.write("mlx5_0/ports/1/phys_state", "2: Polling")
	require.Equal(t, []string{"ib-port-down"}, names(t, d))
	since := c.now
	c.now = c.now.Add(time.Minute)
	conditions, err := d.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, since, conditions[0].Onset, "the onset stays")
	tr.write("mlx5_0/ports/1/phys_state", "3: Disabled")
	require.Empty(t, names(t, d))
}

func TestALinkThatDropsThriceInTwelveHoursFlaps(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	d, c := tr.driver()
	require.Empty(t, names(t, d), "drops of before the start do not count")
	for drop := 6; drop <= 8; drop++ {
		c.now = c.now.Add(time.Hour)
		tr.write("mlx5_0/ports/1/counters/link_downed", fmt.Sprint(drop))
		found := names(t, d)
		require.Equal(t, drop == 8, len(found) == 1, "after drop %d", drop)
	}
	require.Equal(t, []string{"ib-port-flaps"}, names(t, d))
	c.now = c.now.Add(11 * time.Hour)
	require.Empty(t, names(t, d))
}

func TestPacketsOfAForeignPartitionAreNoticed(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	d, _ := tr.driver()
	require.Empty(t, names(t, d))
	tr.write("mlx5_0/ports/1/counters/port_rcv_constraint_errors", "12")
	require.Equal(t, []string{"ib-pkey-violations"}, names(t, d))
	require.Empty(t, names(t, d))
}

func TestThroughputIsTakenOverTheTimeBetweenReadings(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	d, c := tr.driver()
	first, err := d.Samples(t.Context())
	require.NoError(t, err)
	require.NotContains(t, first[0].Values, "ib_rcv_bytes_per_second")
	c.now = c.now.Add(10 * time.Second)
	tr.write("mlx5_0/ports/1/counters/port_rcv_data", "6000")
	second, err := d.Samples(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 2000, second[0].Values["ib_rcv_bytes_per_second"], 0.001, "5000 words of 4 bytes in 10 s")
	require.Zero(t, second[0].Values["ib_xmit_bytes_per_second"])
	tr.write("mlx5_0/ports/1/counters/port_rcv_data", "5") // the counter was reset
	c.now = c.now.Add(10 * time.Second)
	third, err := d.Samples(t.Context())
	require.NoError(t, err)
	require.NotContains(t, third[0].Values, "ib_rcv_bytes_per_second")
}

// TestACapturedMachineIsRead runs on a tree that was captured on an 8-rail H100 host, where it is at hand.
func TestACapturedMachineIsRead(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "..", "shared", "data", "sysfs-infiniband-h100")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the captured tree is not at hand: ../shared/data/sysfs-infiniband-h100 beside the checkout")
	}
	d := rdma.NewSysfs(root, time.Now)
	hcas, err := d.Inventory(t.Context())
	require.NoError(t, err)
	require.Len(t, hcas, 9)
	onFabric := 0
	for _, h := range hcas {
		require.NotEmpty(t, h.Firmware)
		require.Len(t, h.Ports, 1)
		if h.Ports[0].LinkLayer == "InfiniBand" {
			onFabric++
			require.Equal(t, 400, h.Ports[0].RateGbps)
			require.Equal(t, "4X", h.Ports[0].Width)
			require.Equal(t, "ACTIVE", h.Ports[0].State)
		}
	}
	require.Equal(t, 8, onFabric)
	require.Empty(t, names(t, d))
	samples, err := d.Samples(t.Context())
	require.NoError(t, err)
	require.Len(t, samples, 8)
}

// stubFabric answers for one port.
type stubFabric struct{ err error }

func (f stubFabric) ReadPort(_ context.Context, guid protocol.GUID) (protocol.PortTable, error) {
	return protocol.PortTable{GUID: guid, Readable: true, Keys: []protocol.PKey{0x8012, 0x7fff, 0, 0}, Source: "sim"}, f.err
}

func TestSimulatedAdaptersReadTheFabricAndOnlyTheirOwnPorts(t *testing.T) {
	t.Parallel()
	hcas := []protocol.HCA{{Device: "mlx5_0", Ports: []protocol.HCAPort{{Number: 1, GUID: portGUID, State: "ACTIVE", RateGbps: 400}}}}
	s := rdma.NewSim(hcas, stubFabric{}, time.Now)
	table, err := s.PKeys(t.Context(), portGUID)
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8012, 0x7fff}, table.Keys)
	_, err = s.PKeys(t.Context(), portGUID+1)
	require.ErrorIs(t, err, rdma.ErrNotFound)

	table, err = rdma.NewSim(hcas, stubFabric{err: context.DeadlineExceeded}, time.Now).PKeys(t.Context(), portGUID)
	require.NoError(t, err)
	require.False(t, table.Readable)

	s.Cut(portGUID)
	require.Equal(t, []string{"ib-port-down"}, names(t, s))
	cut, err := s.Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, "DOWN", cut[0].Ports[0].State)
	s.Heal()
	require.Empty(t, names(t, s))
	require.Equal(t, "ACTIVE", hcas[0].Ports[0].State)
}
