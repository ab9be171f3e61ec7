package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

// door is an access driver that only keeps count.
type door struct {
	open    map[string]bool
	refuses bool // a log-in is refused after a revocation
}

func (d *door) Grant(_ context.Context, g access.Grant) (protocol.GrantEvidence, error) {
	if len(g.Keys) == 0 {
		return protocol.GrantEvidence{}, access.ErrInvalid
	}
	d.open[g.Place] = true
	return protocol.GrantEvidence{User: g.User}, nil
}

func (d *door) Revoke(_ context.Context, place string) (protocol.RevokeEvidence, error) {
	delete(d.open, place)
	return protocol.RevokeEvidence{LoginRefused: d.refuses}, nil
}

func (d *door) Granted(place string) bool { return d.open[place] }

// rooms is a runtime that has one device a tenancy.
type rooms struct {
	fails   error
	running int          // processes that a tenant left
	last    node.Tenancy // that was prepared
}

func (r *rooms) Prepare(_ context.Context, t node.Tenancy, _ protocol.PrepareSpec, _ func(int, string)) (string, error) {
	r.last = t
	return "sha256:0", r.fails
}

func (r *rooms) Enter(context.Context, node.Tenancy) error { return nil }

func (r *rooms) Leave(context.Context, node.Tenancy) (int, error) {
	ended := r.running
	if r.fails == nil {
		r.running = 0
	}
	return ended, r.fails
}

func (r *rooms) Wipe(context.Context, node.Tenancy, func(int, string)) ([]protocol.DeviceWipe, error) {
	return []protocol.DeviceWipe{{Kind: "scratch", Status: protocol.Wiped, ReadBackSamples: 1}}, r.fails
}

// tables is a fabric whose tables are set by hand.
type tables map[protocol.GUID]protocol.PortTable

func (t tables) ReadPort(_ context.Context, guid protocol.GUID) (protocol.PortTable, error) {
	return t[guid], nil
}

// bench is a node under test: 2 GPUs with an adapter each.
type bench struct {
	*node.Node
	gpus   *gpu.Sim
	ports  *rdma.Sim
	door   *door
	rooms  *rooms
	fabric tables
	dir    string
}

func guid(i int) protocol.GUID { return protocol.GUID(0x1000 + i) }

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{door: &door{open: map[string]bool{}, refuses: true}, rooms: &rooms{}, fabric: tables{}, dir: t.TempDir()}
	var cards []protocol.GPU
	var hcas []protocol.HCA
	for i, id := range []string{"a", "b"} {
		cards = append(cards, protocol.GPU{UUID: "GPU-" + id, Model: "NVIDIA A100-SXM4-80GB", PCIAddress: "0000:1" + id + ":00.0", MIGCapable: true, MIGEnabled: true})
		hcas = append(hcas, protocol.HCA{Device: "mlx5_" + id, Ports: []protocol.HCAPort{{Number: 1, GUID: guid(i), State: "ACTIVE"}}})
		b.fabric[guid(i)] = protocol.PortTable{GUID: guid(i), Readable: true, Keys: []protocol.PKey{protocol.DefaultLimited}}
	}
	var err error
	b.gpus, err = gpu.NewSim(gpu.SimConfig{GPUs: cards, Now: noon})
	require.NoError(t, err)
	b.ports = rdma.NewSim(hcas, b.fabric, noon)
	b.reopen(t)
	return b
}

func (b *bench) reopen(t *testing.T) {
	t.Helper()
	var err error
	b.Node, err = node.New(node.Config{
		Dir: b.dir, NodeID: func() string { return "node_1" }, GPU: b.gpus, RDMA: b.ports, Access: b.door, Runtime: b.rooms, Now: noon,
		Host: func(context.Context) (protocol.NodeInventory, error) { return protocol.NodeInventory{}, nil },
	})
	require.NoError(t, err)
}

// do carries an operation out and returns its error's code, "" for none.
func (b *bench) do(t *testing.T, kind protocol.OperationKind, slots protocol.Slots, spec any) (operation.Outcome, string) {
	t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(t, err)
	op := protocol.Operation{ID: "op", Kind: kind, Slots: slots, Spec: raw}
	outcome, err := b.Handlers()[kind].Handle(t.Context(), op, func(int, string) {})
	var refusal *operation.Refusal
	switch {
	case err == nil:
		return outcome, ""
	case errors.As(err, &refusal):
		return outcome, refusal.Code
	default:
		return outcome, "failed"
	}
}

func whole() protocol.Slots { return protocol.Slots{From: 0, To: 16} }

func prepare(lease string) protocol.PrepareSpec {
	return protocol.PrepareSpec{LeaseID: lease, Mode: "shared", GPUUUIDs: []string{"GPU-a", "GPU-b"}, PortGUIDs: []protocol.GUID{guid(0), guid(1)}}
}

func grant(lease string) protocol.GrantSpec {
	return protocol.GrantSpec{LeaseID: lease, User: "lease", AuthorizedKeys: []string{"k"}, NotAfter: noon().Add(time.Hour)}
}

func TestPortsThatAreNotShownClearKeepATenantOut(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]protocol.PortTable{
		"an earlier tenant's key":   {Readable: true, Keys: []protocol.PKey{0x8012, protocol.DefaultLimited}},
		"a limited one of somebody": {Readable: true, Keys: []protocol.PKey{protocol.DefaultLimited, 0x0012}},
		"full default membership":   {Readable: true, Keys: []protocol.PKey{protocol.DefaultFull}},
		"unreadable":                {Readable: false},
	} {
		b := newBench(t)
		b.fabric[guid(1)] = table
		outcome, code := b.do(t, protocol.Prepare, whole(), prepare("lease_1"))
		require.Equal(t, protocol.FaultPortsNotClear, code, "%s: the machine is in order", name)
		evidence, ok := outcome.Evidence.(protocol.PrepareEvidence)
		require.True(t, ok)
		want := protocol.False
		if !table.Readable {
			want = protocol.Unknown
		}
		require.Contains(t, verdicts(evidence), "pkeys_clear "+string(want), name)
		require.Empty(t, b.Tenancies(), "%s: nothing was touched", name)
	}
}

func TestKeysThatAreNotOursAreNobodysBusinessHere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  protocol.PKey
		pass bool
	}{
		"a storage partition of the site's": {0x8300, true},
		"a reserved one within the range":   {0x8123, true},
		"one of ours":                       {0x8124, false},
		"one of ours, limited":              {0x0124, false},
		"full default membership":           {protocol.DefaultFull, false},
	} {
		b := newBench(t)
		b.fabric[guid(1)] = protocol.PortTable{Readable: true, Keys: []protocol.PKey{protocol.DefaultLimited, c.key}}
		spec := prepare("lease_1")
		spec.ManagedLow, spec.ManagedHi, spec.Reserved = 0x0100, 0x01ff, []protocol.PKey{0x0123}
		_, code := b.do(t, protocol.Prepare, whole(), spec)
		require.Equal(t, c.pass, code == "", "%s: %s", name, code)
	}
}

func verdicts(e protocol.PrepareEvidence) []string {
	var out []string
	for _, c := range e.Checks {
		out = append(out, c.Name+" "+string(c.Verdict))
	}
	return out
}

func TestOnlyTheTenantsOwnDevicesCount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.gpus.BreakMemory("GPU-b")
	b.ports.Cut(guid(1))
	one := protocol.PrepareSpec{LeaseID: "lease_1", Mode: "shared", GPUUUIDs: []string{"GPU-a"}, PortGUIDs: []protocol.GUID{guid(0)}}
	_, code := b.do(t, protocol.Prepare, protocol.Slots{From: 0, To: 8}, one)
	require.Empty(t, code)
	_, code = b.do(t, protocol.Prepare, protocol.Slots{From: 8, To: 16}, protocol.PrepareSpec{LeaseID: "lease_2", GPUUUIDs: []string{"GPU-b"}})
	require.Equal(t, node.CodePreflightFailed, code)
}

func TestOrdersThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, spoil := range map[string]func(*protocol.PrepareSpec, *protocol.Slots){
		"no lease":      func(p *protocol.PrepareSpec, _ *protocol.Slots) { p.LeaseID = "" },
		"no slots":      func(_ *protocol.PrepareSpec, s *protocol.Slots) { s.To = 0 },
		"too few GPUs":  func(p *protocol.PrepareSpec, _ *protocol.Slots) { p.GPUUUIDs = p.GPUUUIDs[:1] },
		"too many GPUs": func(_ *protocol.PrepareSpec, s *protocol.Slots) { s.To = 8 },
	} {
		spec, slots := prepare("lease_1"), whole()
		spoil(&spec, &slots)
		_, code := b.do(t, protocol.Prepare, slots, spec)
		require.Equal(t, node.CodeInvalidSpec, code, name)
	}
	_, code := b.do(t, protocol.Prepare, whole(), "not an object")
	require.Equal(t, node.CodeInvalidSpec, code)
	_, code = b.do(t, protocol.Wipe, protocol.Slots{}, protocol.WipeSpec{})
	require.Equal(t, node.CodeInvalidSpec, code)
	_, code = b.do(t, protocol.Revoke, whole(), protocol.RevokeSpec{})
	require.Equal(t, node.CodeInvalidSpec, code)
}

func TestNobodyIsLetInBeforeThePlaceIsReady(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, code := b.do(t, protocol.Grant, whole(), grant("lease_1"))
	require.Equal(t, node.CodeNotPrepared, code)
	b.rooms.fails = errors.New("disk full")
	_, code = b.do(t, protocol.Prepare, whole(), prepare("lease_1"))
	require.Equal(t, "failed", code)
	_, code = b.do(t, protocol.Grant, whole(), grant("lease_1"))
	require.Equal(t, node.CodeNotPrepared, code, "its preparation failed half way")
	_, code = b.do(t, protocol.Prepare, whole(), prepare("lease_2"))
	require.Equal(t, node.CodeNotWiped, code, "what was touched counts")
	b.rooms.fails = nil
	_, code = b.do(t, protocol.Prepare, whole(), prepare("lease_1"))
	require.Empty(t, code, "the same order may run again")
	_, code = b.do(t, protocol.Grant, whole(), grant("lease_1"))
	require.Empty(t, code)
}

func TestARevocationThatLeavesALogInIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.door.refuses = false
	outcome, code := b.do(t, protocol.Revoke, whole(), protocol.RevokeSpec{LeaseID: "lease_1"})
	require.Equal(t, node.CodeLoginPossible, code)
	require.Equal(t, protocol.RevokeEvidence{}, outcome.Evidence)
}

func TestARevocationEndsWhatTheTenantLeftRunning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, code := b.do(t, protocol.Prepare, whole(), prepare("lease_1"))
	require.Empty(t, code)
	b.rooms.running = 3
	outcome, code := b.do(t, protocol.Revoke, whole(), protocol.RevokeSpec{LeaseID: "lease_1"})
	require.Empty(t, code)
	require.Equal(t, protocol.RevokeEvidence{LoginRefused: true, ProcessesEnded: 3}, outcome.Evidence)

	b.rooms.running, b.rooms.fails = 1, errors.New("a process hangs in the kernel")
	_, code = b.do(t, protocol.Revoke, whole(), protocol.RevokeSpec{LeaseID: "lease_1"})
	require.Equal(t, "failed", code, "what still runs is not revoked")
	b.rooms.fails = nil
	_, code = b.do(t, protocol.Revoke, protocol.Slots{From: 0, To: 8}, protocol.RevokeSpec{LeaseID: "lease_9"})
	require.Empty(t, code)
	require.Equal(t, 1, b.rooms.running, "another's place was not touched")
}

func TestARuntimeIsGivenTheMIGInstanceThatWasMadeForTheTenancy(t *testing.T) {
	t.Parallel()
	card := protocol.GPU{UUID: "GPU-m", Model: "NVIDIA H100 80GB HBM3", MIGCapable: true, MIGEnabled: true}
	b := newBench(t)
	var err error
	b.gpus, err = gpu.NewSim(gpu.SimConfig{GPUs: []protocol.GPU{card}, Now: noon})
	require.NoError(t, err)
	b.reopen(t)
	spec := protocol.PrepareSpec{LeaseID: "lease_1", Mode: "shared", GPUUUIDs: []string{"GPU-m"}, MIGProfile: "3g.40gb"}
	_, code := b.do(t, protocol.Prepare, protocol.Slots{From: 4, To: 8}, spec)
	require.Empty(t, code)
	there, err := b.gpus.Instances(t.Context(), "GPU-m")
	require.NoError(t, err)
	require.Equal(t, there[0].UUID, b.rooms.last.GPUs[0].Instance)
	kept, _ := b.Tenancy("lease_1/4-8")
	require.Equal(t, b.rooms.last.GPUs, kept.GPUs, "what was given is remembered")
}

func TestAWipeOfALostGPUIsAFailureThatNamesIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, code := b.do(t, protocol.Prepare, whole(), prepare("lease_1"))
	require.Empty(t, code)
	b.gpus.Lose("GPU-b")
	outcome, code := b.do(t, protocol.Wipe, whole(), protocol.WipeSpec{LeaseID: "lease_1", Nonce: "n"})
	require.Equal(t, node.CodeWipeFailed, code)
	require.Equal(t, protocol.PayloadWipeEvidence, outcome.PayloadType)
	evidence, ok := outcome.Evidence.(protocol.WipeEvidence)
	require.True(t, ok)
	require.Equal(t, "GPU-b", evidence.Devices[2].Identity)
	require.Equal(t, protocol.WipeFailed, evidence.Devices[2].Status)
	require.Len(t, b.Tenancies(), 1, "it stays the tenant's until it is clean")
}

func TestSlotsThatNobodyIsRecordedOnAreWipedAllTheSame(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.gpus.Occupy("GPU-b", protocol.Slots{To: 8}, "somebody"))
	_, code := b.do(t, protocol.Wipe, protocol.Slots{From: 8, To: 16}, protocol.WipeSpec{Nonce: "n"})
	require.Empty(t, code)
	require.Empty(t, b.gpus.Holds("GPU-b"))
	b.gpus.Lose("GPU-b")
	outcome, code := b.do(t, protocol.Wipe, protocol.Slots{From: 8, To: 16}, protocol.WipeSpec{Nonce: "n"})
	require.Equal(t, node.CodeWipeFailed, code)
	require.NotNil(t, outcome.Evidence)
}

func TestAHostWithoutDriversSaysSo(t *testing.T) {
	t.Parallel()
	n, err := node.New(node.Config{
		Dir: t.TempDir(), NodeID: func() string { return "node_1" }, GPU: gpu.Absent{Reason: "none", Since: noon()}, RDMA: rdma.NewSysfs(t.TempDir(), noon),
		Host: func(context.Context) (protocol.NodeInventory, error) { return protocol.NodeInventory{}, nil }, Now: noon,
	})
	require.NoError(t, err)
	b := &bench{Node: n}
	for kind, spec := range map[protocol.OperationKind]any{
		protocol.Prepare: prepare("lease_1"), protocol.Grant: grant("lease_1"), protocol.Revoke: protocol.RevokeSpec{LeaseID: "lease_1"}, protocol.Wipe: protocol.WipeSpec{},
	} {
		_, code := b.do(t, kind, whole(), spec)
		require.Equal(t, node.CodeUnsupported, code, kind)
	}
	report, err := n.Inventory(t.Context())
	require.NoError(t, err)
	require.Empty(t, report.Node.GPUs)
	conditions, samples, err := n.Health(t.Context())
	require.NoError(t, err)
	require.Len(t, conditions, 1)
	require.Empty(t, samples)
}

// Whatever orders come in whatever order and with restarts between: no two tenants ever share a slot, and nobody gets slots on
// which somebody else's data lies.
func TestNoOrderOfOrdersPutsTwoTenantsOnOneSlot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		holder := map[int]node.Tenancy{} // whose data lies on each slot
		halves := []protocol.Slots{{From: 0, To: 8}, {From: 8, To: 16}, whole()}
		for range rapid.IntRange(1, 25).Draw(rt, "orders") {
			lease := rapid.SampledFrom([]string{"lease_1", "lease_2", "lease_3"}).Draw(rt, "lease")
			slots := rapid.SampledFrom(halves).Draw(rt, "slots")
			spec := prepare(lease)
			spec.GPUUUIDs, spec.PortGUIDs = spec.GPUUUIDs[slots.From/8:slots.To/8], nil
			switch rapid.IntRange(0, 4).Draw(rt, "order") {
			case 0:
				if _, code := b.do(t, protocol.Prepare, slots, spec); code == "" {
					for s := slots.From; s < slots.To; s++ {
						require.Contains(rt, []string{"", lease}, holder[s].LeaseID, "slot %d has another tenant", s)
						holder[s] = node.Tenancy{LeaseID: lease, Slots: slots}
					}
				}
			case 1:
				b.do(t, protocol.Grant, slots, grant(lease))
			case 2:
				b.do(t, protocol.Revoke, slots, protocol.RevokeSpec{LeaseID: lease})
			case 3:
				if _, code := b.do(t, protocol.Wipe, slots, protocol.WipeSpec{LeaseID: lease, Nonce: "n"}); code == "" {
					for s := slots.From; s < slots.To; s++ {
						require.False(rt, b.door.open[holder[s].Place()], "slot %d was wiped under its tenant", s)
						holder[s] = node.Tenancy{}
					}
				}
			default:
				b.reopen(t)
			}
			for i, x := range b.Tenancies() {
				for _, y := range b.Tenancies()[i+1:] {
					require.False(rt, x.Slots.Overlaps(y.Slots), "%v and %v overlap", x, y)
				}
			}
		}
	})
}
