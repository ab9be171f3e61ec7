package fleet_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
)

func TestAnInventoryReachesTheInventory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, f := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.FabricAgent, "ib0")
	reply, err := w.fleet.Inventory(t.Context(), w.call(t, a), protocol.Inventory{Node: &protocol.NodeInventory{Hostname: "a", Serial: "S1", CPUCores: 64}})
	require.NoError(t, err)
	require.Equal(t, "discovered", reply.State)
	require.NotNil(t, reply.Changes)
	var serial string
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT serial FROM node WHERE id = $1", a.node).Scan(&serial))
	require.Equal(t, "S1", serial)

	reply, err = w.fleet.Inventory(t.Context(), w.call(t, f), protocol.Inventory{Fabric: &protocol.FabricInventory{
		Controller: protocol.Controller{Driver: "sim", MaxPKeysPerPort: 31}, Posture: []protocol.PostureCheck{{Item: "m_key_set", Verdict: protocol.True}},
	}})
	require.NoError(t, err)
	require.Equal(t, "observed", reply.State)
	var driver string
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT driver FROM fabric WHERE id = $1", w.Fabric).Scan(&driver))
	require.Equal(t, "sim", driver)
}

func TestAGarbageInventoryIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, f := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.FabricAgent, "ib0")
	node := func(change func(*protocol.NodeInventory)) protocol.Inventory {
		n := protocol.NodeInventory{
			GPUs: []protocol.GPU{{UUID: "GPU-1", PCIAddress: "0000:01:00.0", NUMANode: -1}},
			HCAs: []protocol.HCA{{Device: "mlx5_0", Ports: []protocol.HCAPort{{Number: 1, GUID: 1}}}},
		}
		change(&n)
		return protocol.Inventory{Node: &n}
	}
	subnet := func(change func(*protocol.Topology)) protocol.Inventory {
		f := protocol.FabricInventory{Topology: protocol.Topology{Switches: []protocol.Switch{{GUID: 1}}, Links: make([]protocol.Link, 1), Ports: []protocol.TopologyPort{{GUID: 2}}}}
		change(&f.Topology)
		return protocol.Inventory{Fabric: &f}
	}
	for name, c := range map[string]struct {
		from   *agent
		report protocol.Inventory
	}{
		"nothing":                {a, protocol.Inventory{}},
		"both":                   {a, protocol.Inventory{Node: &protocol.NodeInventory{}, Fabric: &protocol.FabricInventory{}}},
		"a node by a fabric":     {f, protocol.Inventory{Node: &protocol.NodeInventory{}}},
		"a fabric by a node":     {a, protocol.Inventory{Fabric: &protocol.FabricInventory{}}},
		"a thousand GPUs":        {a, node(func(n *protocol.NodeInventory) { n.GPUs = make([]protocol.GPU, 1_000) })},
		"a GPU without UUID":     {a, node(func(n *protocol.NodeInventory) { n.GPUs[0].UUID = "" })},
		"two GPUs in one place":  {a, node(func(n *protocol.NodeInventory) { n.GPUs = append(n.GPUs, n.GPUs[0]) })},
		"a negative memory":      {a, node(func(n *protocol.NodeInventory) { n.MemoryBytes = -1 })},
		"too many cores":         {a, node(func(n *protocol.NodeInventory) { n.CPUCores = 1 << 40 })},
		"a port without GUID":    {a, node(func(n *protocol.NodeInventory) { n.HCAs[0].Ports[0].GUID = 0 })},
		"a port twice":           {a, node(func(n *protocol.NodeInventory) { n.HCAs = append(n.HCAs, n.HCAs[0]) })},
		"a fantastic rate":       {a, node(func(n *protocol.NodeInventory) { n.HCAs[0].Ports[0].RateGbps = 1 << 40 })},
		"a switch without GUID":  {f, subnet(func(t *protocol.Topology) { t.Switches[0].GUID = 0 })},
		"a link out of range":    {f, subnet(func(t *protocol.Topology) { t.Links[0].FromPort = 1 << 40 })},
		"a subnet port sans id":  {f, subnet(func(t *protocol.Topology) { t.Ports[0].GUID = 0 })},
		"a negative switch port": {f, subnet(func(t *protocol.Topology) { t.Ports[0].SwitchPort = -1 })},
	} {
		_, err := w.fleet.Inventory(t.Context(), w.call(t, c.from), c.report)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
	}
	_, err := w.fleet.Inventory(t.Context(), w.call(t, a), node(func(*protocol.NodeInventory) {}))
	require.NoError(t, err)
	_, err = w.fleet.Inventory(t.Context(), w.call(t, f), subnet(func(*protocol.Topology) {}))
	require.NoError(t, err)
}

func TestASuccessWithoutItsProofHasFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, other := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b")
	evidence := protocol.WipeEvidence{LeaseID: "l", NodeID: a.node.String(), Nonce: "n", Devices: []protocol.DeviceWipe{{Kind: "nvme", Status: protocol.Wiped}}}
	good := func() protocol.Result { return a.seal(t, protocol.PayloadWipeEvidence, evidence) }
	for name, c := range map[string]struct {
		change func(r *protocol.Result)
		state  fleet.State
		kept   bool
	}{
		"signed": {func(*protocol.Result) {}, fleet.Succeeded, true},
		"spaced otherwise": {func(r *protocol.Result) {
			r.Evidence = protocol.Raw(strings.ReplaceAll(string(r.Evidence), `":`, `" : `))
		}, fleet.Succeeded, true},
		"unsigned":          {func(r *protocol.Result) { r.Signed = nil }, fleet.Failed, false},
		"signed as another": {func(r *protocol.Result) { r.Signed.Signatures[0].KeyID = other.id }, fleet.Failed, false},
		"signed by another": {func(r *protocol.Result) {
			*r = other.seal(t, protocol.PayloadWipeEvidence, evidence)
			r.Signed.Signatures[0].KeyID = a.id
		}, fleet.Failed, false},
		"signed as another type":  {func(r *protocol.Result) { *r = a.seal(t, protocol.PayloadPKeyObservation, evidence) }, fleet.Failed, false},
		"signed twice":            {func(r *protocol.Result) { r.Signed.Signatures = append(r.Signed.Signatures, r.Signed.Signatures[0]) }, fleet.Failed, false},
		"other evidence":          {func(r *protocol.Result) { r.Evidence = protocol.Raw(`{"lease_id":"m"}`) }, fleet.Failed, false},
		"no evidence":             {func(r *protocol.Result) { r.Evidence = nil }, fleet.Failed, false},
		"garbage":                 {func(r *protocol.Result) { *r = a.seal(t, protocol.PayloadWipeEvidence, []int{1}) }, fleet.Failed, false},
		"a failure with evidence": {func(r *protocol.Result) { r.State, r.Fault = protocol.Failed, &protocol.Fault{Code: "wipe-failed"} }, fleet.Failed, true},
		"a failure without":       {func(r *protocol.Result) { *r = protocol.Result{State: protocol.Failed} }, fleet.Failed, false},
		"fenced":                  {func(r *protocol.Result) { *r = protocol.Result{State: protocol.Fenced} }, fleet.Fenced, false},
	} {
		step := fleet.Step{Lease: w.lease(t), Kind: "wipe", Attempt: 1}
		work := revokeOf(a)
		work.Kind, work.Spec = protocol.Wipe, protocol.WipeSpec{Nonce: "n"}
		_, err := w.fleet.Issue(t.Context(), step, []fleet.Work{work})
		require.NoError(t, err)
		found, err := w.fleet.Poll(t.Context(), w.call(t, a), 0)
		require.NoError(t, err)
		result := good()
		c.change(&result)
		err = w.fleet.Complete(t.Context(), w.call(t, a), readID(t, found[0].ID), result)
		refused := result.State == protocol.Succeeded && c.state != fleet.Succeeded
		require.Equal(t, refused, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		status, err := w.fleet.Step(t.Context(), step)
		require.NoError(t, err)
		o := status.Operations[0]
		require.Equal(t, c.state, o.State, name)
		require.Zero(t, status.Remaining, name)
		require.Equal(t, c.kept, o.Evidence != nil, name)
		require.Equal(t, c.kept, o.Signed != nil, name)
		if c.kept {
			require.True(t, ed25519.Verify(publicOf(a.key), protocol.PAE(o.Signed.PayloadType, o.Signed.Payload), o.Signed.Signatures[0].Sig), name)
		}
		if o.State != fleet.Succeeded {
			require.NotEmpty(t, o.Fault.Code, name)
		}
	}
}

func TestAResultOfNoStateLeavesItsOperationOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	operations := w.issue(t, step, a)
	err := w.fleet.Complete(t.Context(), w.call(t, a), operations[0], protocol.Result{State: "done"})
	require.Equal(t, "result", fault.CodeOf(err))
	for _, bad := range []protocol.Progress{{Percent: -1}, {Percent: 101}, {Phase: strings.Repeat("x", 1_000)}} {
		require.Equal(t, fault.Invalid, fault.KindOf(w.fleet.Progress(t.Context(), w.call(t, a), operations[0], bad)))
	}
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, 1, status.Remaining)
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, a), operations[0], revoked()))
	w.clock.Advance(time.Second)
}
