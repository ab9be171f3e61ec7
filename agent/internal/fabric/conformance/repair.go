package conformance

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// repairsDrift has tables overwritten that the manager believes to be right, and asks for them to be written anew.
func repairsDrift(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	if rig.WordOnly {
		t.Skip("nothing reads the ports here: what is to be repaired is not seen")
	}
	p := rig.Ports
	desired := set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2]))
	_, err := apply(ctx, t, rig.Driver, 1, desired)
	require.NoError(t, err)
	rig.OverwriteHCA(t, p[4], 0x8005, 0x7fff)    // a stranger has the tenant's key
	rig.OverwriteSwitch(t, p[0], 0x7fff)         // the tenant's key is gone
	rig.OverwriteHCA(t, p[2], 0x7fff, 0x8006)    // or not the first
	rig.OverwriteSwitch(t, p[5], 0x7fff, 0xffff) // a port was opened
	seen, err := repair(ctx, t, rig.Driver, desired, p...)
	require.NoError(t, err)
	require.True(t, seen.Converged)
	require.Equal(t, []protocol.GUID{p[0], p[2], p[4], p[5]}, seen.Repaired, "the others are left alone")
	require.Len(t, seen.Ports, len(p))
	rig.requireHonest(ctx, t, rig.Driver, seen)
	for _, link := range seen.Ports {
		for _, key := range append(nonZero(link.HCA.Keys), nonZero(link.Switch.Keys)...) {
			require.Contains(t, []protocol.PKey{0x7fff, 0x8005, 0x8006}, key, "nothing of the repair stays")
		}
	}
	seen, err = repair(ctx, t, rig.Driver, desired, p...)
	require.NoError(t, err)
	require.Empty(t, seen.Repaired)
	require.Zero(t, seen.Sweeps, "there is nothing to repair")
}

// repair applies the first epoch's set again, with ports to repair.
func repair(ctx context.Context, t *testing.T, driver fabric.Driver, desired fabric.Desired, ports ...protocol.GUID) (protocol.FabricObservation, error) {
	t.Helper()
	spec, err := json.Marshal(protocol.ApplyPartitionsSpec{
		Nonce: "nonce", Partitions: desired.Partitions, ManagedLow: desired.Managed.Low, ManagedHi: desired.Managed.High, Repair: ports,
	})
	require.NoError(t, err)
	return handle(ctx, t, driver, protocol.Operation{ID: "op", Kind: protocol.ApplyPartitions, Epoch: 1, Spec: spec})
}
