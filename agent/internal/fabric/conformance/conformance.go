// Package conformance is the one suite that every fabric driver must pass, on whatever its subnet is.
package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Rig is a driver on a subnet of its own, with the means to mistreat it.
type Rig struct {
	Driver fabric.Driver
	// Ports are at least eight HCA ports, all up and in no partition.
	Ports []protocol.GUID
	// Cut makes an HCA port unreachable, Join undoes it.
	Cut, Join func(t *testing.T, port protocol.GUID)
	// OverwriteHCA and OverwriteSwitch set tables behind the manager's back.
	OverwriteHCA, OverwriteSwitch func(t *testing.T, port protocol.GUID, keys ...protocol.PKey)
	// Busy makes the next Apply take so long that others arrive meanwhile, and returns how to end that.
	Busy func(t *testing.T) (release func())
	// Reopen returns a new driver on the same subnet and state, as after a restart of the agent.
	Reopen func(t *testing.T) fabric.Driver
	// Truth tells what both ends of a port's link hold on the driver's subnet, whatever the driver says; nil: what a second one reads.
	Truth func(t *testing.T, driver fabric.Driver, port protocol.GUID) protocol.LinkState
	// Faults are ways in which this manager, or the way to it, can be made to fail.
	Faults []Fault
	// Untold are posture items that this manager does not tell.
	Untold []string
	// WordOnly: nothing reads the ports here, so that what is done behind the manager's back is not seen. Claims on that are skipped.
	WordOnly bool
}

// managed is the range that the suite uses; Foreign is a partition outside.
var managed = fabric.Range{Low: 0x0001, High: 0x3fff} //nolint:gochecknoglobals // a constant that Go cannot write as one

const testDeadline = time.Minute

// Run runs the suite; newRig makes a fresh subnet for each claim.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	t.Helper()
	for name, claim := range map[string]func(context.Context, *testing.T, Rig){
		"APartitionIsAtIndexZeroOfBothEnds":                appliesOnePartition,
		"TwoTenantsCannotReachEachOther":                   isolatesTwoTenants,
		"ARevokedPartitionIsGoneFromBothEnds":              revokes,
		"ZeroTenantsLeavesEverybodyLimited":                appliesZeroTenants,
		"WrongInputNeverReachesTheManager":                 refusesWrongInput,
		"AnUnreachablePortIsNotConverged":                  doesNotTrustSilence,
		"ADeadPortDoesNotKeepOthersFromBeingServed":        servesOthersBesideADeadPort,
		"ATableOverwrittenBehindTheManagersBackIsReported": detectsDrift,
		"DriftIsRepairedWhenThatIsAskedFor":                repairsDrift,
		"OfManyWaitingSetsTheNewestIsApplied":              coalesces,
		"AStaleEpochIsRefused":                             fencesStaleEpochs,
		"ARepeatOfTheSameEpochChangesNothing":              repeats,
		"TheSetAndItsEpochSurviveARestart":                 survivesRestart,
		"ASetThatDropsMostMembersIsRefused":                guardsShrink,
		"TheTopologyListsEveryPort":                        listsTopology,
		"PostureNamesEveryItem":                            reportsPosture,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
			defer cancel()
			claim(ctx, t, newRig(t))
		})
	}
	t.Run("WhateverFailsOnlyWhatIsCleanIsCalledClean", func(t *testing.T) {
		t.Parallel()
		staysHonest(t, newRig)
	})
}

func set(partitions ...protocol.Partition) fabric.Desired {
	return fabric.Desired{Partitions: partitions, Managed: managed}
}

func tenant(key protocol.PKey, name string, members ...protocol.GUID) protocol.Partition {
	return protocol.Partition{PKey: key, Name: name, Members: members}
}

// apply runs the operation as the agent does and returns its evidence.
func apply(ctx context.Context, t *testing.T, driver fabric.Driver, epoch int64, desired fabric.Desired, observe ...protocol.GUID) (protocol.FabricObservation, error) {
	t.Helper()
	spec, err := json.Marshal(protocol.ApplyPartitionsSpec{
		Nonce: "nonce", Partitions: desired.Partitions, ManagedLow: desired.Managed.Low, ManagedHi: desired.Managed.High,
		AllowShrink: desired.AllowShrink, Observe: observe,
	})
	require.NoError(t, err)
	return handle(ctx, t, driver, protocol.Operation{ID: "op", Kind: protocol.ApplyPartitions, Epoch: epoch, Spec: spec})
}

func observe(ctx context.Context, t *testing.T, driver fabric.Driver, ports ...protocol.GUID) protocol.FabricObservation {
	t.Helper()
	spec, err := json.Marshal(protocol.ObserveFabricSpec{Nonce: "audit", Ports: ports})
	require.NoError(t, err)
	seen, err := handle(ctx, t, driver, protocol.Operation{ID: "op", Kind: protocol.ObserveFabric, Spec: spec})
	require.NoError(t, err)
	return seen
}

func handle(ctx context.Context, t *testing.T, driver fabric.Driver, op protocol.Operation) (protocol.FabricObservation, error) {
	t.Helper()
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: "fab", Now: func() time.Time { return time.Unix(0, 0) }})
	outcome, err := handlers[op.Kind].Handle(ctx, op, func(int, string) {})
	seen, _ := outcome.Evidence.(protocol.FabricObservation) // empty when nothing was done
	return seen, err
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	var refusal *operation.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, code, refusal.Code, refusal.Detail)
}

func requireTables(t *testing.T, seen protocol.FabricObservation, port protocol.GUID, want ...protocol.PKey) {
	t.Helper()
	for _, link := range seen.Ports {
		if link.GUID != port {
			continue
		}
		require.True(t, link.HCA.Readable)
		require.True(t, link.Switch.Readable)
		require.Equal(t, want, link.HCA.Keys, "HCA end of %v", port)
		require.ElementsMatch(t, want, nonZero(link.Switch.Keys), "switch end of %v", port)
		return
	}
	t.Fatalf("port %v is not in the observation", port)
}

func nonZero(keys []protocol.PKey) []protocol.PKey {
	var out []protocol.PKey
	for _, key := range keys {
		if key != 0 {
			out = append(out, key)
		}
	}
	return out
}

func appliesOnePartition(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	seen, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", rig.Ports[0], rig.Ports[1])), rig.Ports[2])
	require.NoError(t, err)
	require.True(t, seen.Converged)
	require.Equal(t, "nonce", seen.Nonce)
	require.Equal(t, "fab", seen.FabricID)
	require.EqualValues(t, 1, seen.Epoch)
	require.Equal(t, 1, seen.Sweeps)
	requireTables(t, seen, rig.Ports[0], 0x8005, 0x7fff)
	requireTables(t, seen, rig.Ports[1], 0x8005, 0x7fff)
	requireTables(t, seen, rig.Ports[2], 0x7fff)
	for _, link := range seen.Ports {
		require.NotZero(t, link.SwitchGUID)
		require.NotZero(t, link.SwitchPort)
	}
	own, err := rig.Driver.ReadPort(ctx, rig.Ports[0])
	require.NoError(t, err)
	require.True(t, own.Readable)
	require.Equal(t, []protocol.PKey{0x8005, 0x7fff}, own.Keys)
}

func isolatesTwoTenants(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	seen, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2], p[3])))
	require.NoError(t, err)
	require.True(t, seen.Converged)
	requireTables(t, seen, p[0], 0x8005, 0x7fff)
	requireTables(t, seen, p[3], 0x8006, 0x7fff)
	var negative, positive int
	for _, check := range seen.Checks {
		require.Equal(t, check.Want, check.Found, "%v to %v", check.From, check.To)
		if check.Want == protocol.False {
			negative++
		} else {
			positive++
		}
	}
	require.GreaterOrEqual(t, negative, 2)
	require.GreaterOrEqual(t, positive, 2)
	require.Equal(t, protocol.True, rig.Driver.HasPath(ctx, p[0], p[1]))
	require.Equal(t, protocol.False, rig.Driver.HasPath(ctx, p[0], p[2]))
	require.Equal(t, protocol.False, rig.Driver.HasPath(ctx, p[4], p[5]), "idle ports cannot reach each other either")
}

func revokes(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2], p[3])))
	require.NoError(t, err)
	seen, err := apply(ctx, t, rig.Driver, 2, set(tenant(6, "lease-b", p[2], p[3])))
	require.NoError(t, err)
	require.True(t, seen.Converged)
	requireTables(t, seen, p[0], 0x7fff)
	requireTables(t, seen, p[1], 0x7fff)
	require.Equal(t, protocol.False, rig.Driver.HasPath(ctx, p[0], p[1]))
	require.True(t, observe(ctx, t, rig.Driver).Converged)
}

func appliesZeroTenants(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	_, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", rig.Ports...)))
	require.NoError(t, err)
	seen, err := apply(ctx, t, rig.Driver, 2, set())
	require.NoError(t, err, "the last lease may leave")
	require.True(t, seen.Converged)
	for _, port := range rig.Ports {
		requireTables(t, seen, port, 0x7fff)
	}
	require.Equal(t, protocol.False, rig.Driver.HasPath(ctx, rig.Ports[0], rig.Ports[1]))
}

func refusesWrongInput(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	good := set(tenant(5, "lease-a", p[0], p[1]))
	_, err := apply(ctx, t, rig.Driver, 1, good)
	require.NoError(t, err)
	for _, wrong := range []struct {
		code string
		set  fabric.Desired
	}{
		{fabric.CodeInvalidPartitions, set(tenant(5, "lease-a", p[0]), tenant(5, "lease-b", p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "lease-a", p[0]), tenant(6, "lease-a", p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "lease-a", p[0], p[0]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "lease-a", p[0]), tenant(6, "lease-b", p[0]))},
		{fabric.CodeInvalidPartitions, set(tenant(0, "lease-a", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(0x8005, "lease-a", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(0x7fff, "lease-a", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(0x4000, "lease-a", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "a", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "ALL", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "x=0x7fff,defmember=full : ALL;", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "line\nbreak", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, set(tenant(5, "", p[0], p[1]))},
		{fabric.CodeInvalidPartitions, fabric.Desired{Managed: fabric.Range{Low: 0, High: 0x7fff}}},
		{fabric.CodeUnknownPort, set(tenant(5, "lease-a", p[0], p[1], 0xdead))},
		{fabric.CodeUnknownPort, set(tenant(5, "lease-a", p[0], p[1], 0))},
	} {
		_, err := apply(ctx, t, rig.Driver, 2, wrong.set)
		requireCode(t, wrong.code, err)
	}
	state, err := rig.Driver.Current(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, state.Epoch, "a refused set does not raise the epoch")
	require.Equal(t, good.Partitions, state.Desired.Partitions)
	seen := observe(ctx, t, rig.Driver)
	require.True(t, seen.Converged)
	requireTables(t, seen, p[0], 0x8005, 0x7fff)
}

func doesNotTrustSilence(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2])))
	require.NoError(t, err)
	rig.Cut(t, p[0])
	seen, err := apply(ctx, t, rig.Driver, 2, set(tenant(6, "lease-b", p[2])))
	requireCode(t, fabric.CodeNotConverged, err)
	require.False(t, seen.Converged)
	require.Len(t, seen.Ports, 2)
	require.False(t, seen.Ports[0].HCA.Readable)
	require.NotZero(t, seen.Ports[0].SwitchGUID, "where it was is still known")
	requireTables(t, seen, p[1], 0x7fff)
	require.False(t, observe(ctx, t, rig.Driver, p[0]).Converged)
	rig.Join(t, p[0])
	seen, err = apply(ctx, t, rig.Driver, 2, set(tenant(6, "lease-b", p[2])))
	require.NoError(t, err, "the same operation may be done again")
	require.True(t, seen.Converged)
	requireTables(t, seen, p[0], 0x7fff)
}

func servesOthersBesideADeadPort(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[0], p[1])))
	require.NoError(t, err)
	rig.Cut(t, p[0])
	seen, err := apply(ctx, t, rig.Driver, 2, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2], p[3])))
	require.NoError(t, err, "a port that is down is still known")
	require.True(t, seen.Converged)
	requireTables(t, seen, p[2], 0x8006, 0x7fff)
	reopened := rig.Reopen(t)
	seen, err = apply(ctx, t, reopened, 3, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2])))
	require.NoError(t, err, "also after a restart of the agent")
	require.True(t, seen.Converged)
}

func detectsDrift(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	if rig.WordOnly {
		t.Skip("nothing reads the ports here: what is done behind the manager's back is not seen")
	}
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[0], p[1])))
	require.NoError(t, err)
	require.True(t, observe(ctx, t, rig.Driver).Converged)
	for name, drift := range map[string]func(){
		"a tenant's key on a stranger":          func() { rig.OverwriteHCA(t, p[2], 0x8005, 0x7fff) },
		"full in the default partition":         func() { rig.OverwriteHCA(t, p[2], 0xffff) },
		"a tenant's key on the stranger's wall": func() { rig.OverwriteSwitch(t, p[2], 0x7fff, 0x8005) },
		"no default key":                        func() { rig.OverwriteHCA(t, p[2], 0) },
	} {
		drift()
		seen := observe(ctx, t, rig.Driver, p...)
		require.False(t, seen.Converged, name)
		rig.OverwriteHCA(t, p[2], 0x7fff)
		rig.OverwriteSwitch(t, p[2], 0x7fff)
		require.True(t, observe(ctx, t, rig.Driver, p...).Converged, name)
	}
	rig.OverwriteHCA(t, p[2], 0x7fff, 0x8000|0x5000)
	seen := observe(ctx, t, rig.Driver, p...)
	require.True(t, seen.Converged, "a foreign partition is reported, not objected to")
	require.Equal(t, []protocol.PKey{0x5000}, seen.Foreign)
}

func coalesces(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	release := rig.Busy(t)
	const callers = 12
	type result struct {
		seen protocol.FabricObservation
		err  error
	}
	results := make([]result, callers)
	var group sync.WaitGroup
	for i := range callers {
		key := protocol.FirstPartitionID + protocol.PKey(i) //nolint:gosec // below 12
		group.Go(func() {
			seen, err := apply(ctx, t, rig.Driver, int64(key), set(tenant(key, "lease-a", p[0], p[1])))
			results[i] = result{seen, err}
		})
	}
	release()
	group.Wait()
	state, err := rig.Driver.Current(ctx)
	require.NoError(t, err)
	sweeps, refused := 0, 0
	for _, r := range results {
		var refusal *operation.Refusal
		if errors.As(r.err, &refusal) && (refusal.Code == fabric.CodeSuperseded || refusal.Code == fabric.CodeStaleEpoch) {
			refused++
			continue
		}
		sweeps += r.seen.Sweeps
		if r.err != nil && r.seen.Epoch < state.Epoch { // a newer one was under way when it read back
			require.ErrorAs(t, r.err, &refusal)
			require.Contains(t, []string{fabric.CodeNotConverged, fabric.CodePathCheckFailed}, refusal.Code)
			continue
		}
		require.NoError(t, r.err)
	}
	require.LessOrEqual(t, sweeps, callers-refused, "one signal at most for each set that was applied")
	seen := observe(ctx, t, rig.Driver)
	require.True(t, seen.Converged)
	requireTables(t, seen, p[0], state.Desired.Partitions[0].PKey|protocol.FullMember, 0x7fff)
}

func fencesStaleEpochs(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 7, set(tenant(5, "lease-a", p[0], p[1])))
	require.NoError(t, err)
	for _, driver := range []fabric.Driver{rig.Driver, rig.Reopen(t)} {
		_, err = apply(ctx, t, driver, 6, set(tenant(6, "lease-b", p[2], p[3])))
		requireCode(t, fabric.CodeStaleEpoch, err)
	}
	seen := observe(ctx, t, rig.Driver, p...)
	require.True(t, seen.Converged)
	require.EqualValues(t, 7, seen.Epoch)
	requireTables(t, seen, p[0], 0x8005, 0x7fff)
	requireTables(t, seen, p[2], 0x7fff)
}

func repeats(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	first, err := apply(ctx, t, rig.Driver, 1, set(tenant(5, "lease-a", p[1], p[0])))
	require.NoError(t, err)
	for _, driver := range []fabric.Driver{rig.Driver, rig.Reopen(t)} {
		again, err := apply(ctx, t, driver, 1, set(tenant(5, "lease-a", p[0], p[1])))
		require.NoError(t, err)
		require.True(t, again.Converged)
		require.Zero(t, again.Sweeps, "all is as it should be: nothing to signal")
		require.Equal(t, first.Ports, again.Ports, "a repeat answers for the same ports")
	}
}

func survivesRestart(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	_, err := apply(ctx, t, rig.Driver, 3, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2])))
	require.NoError(t, err)
	before, err := rig.Driver.Current(ctx)
	require.NoError(t, err)
	after, err := rig.Reopen(t).Current(ctx)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func guardsShrink(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	p := rig.Ports
	full := set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2], p[3]), tenant(7, "lease-c", p[4], p[5]))
	_, err := apply(ctx, t, rig.Driver, 1, full)
	require.NoError(t, err)
	_, err = apply(ctx, t, rig.Driver, 2, set())
	requireCode(t, fabric.CodeShrinkRefused, err)
	seen, err := apply(ctx, t, rig.Driver, 2, set(full.Partitions[0], full.Partitions[1]))
	require.NoError(t, err, "one lease may end")
	require.True(t, seen.Converged)
	allowed := set()
	allowed.AllowShrink = true
	seen, err = apply(ctx, t, rig.Driver, 3, allowed)
	require.NoError(t, err)
	require.True(t, seen.Converged)
}

func listsTopology(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	rig.Cut(t, rig.Ports[0])
	inventory, err := fabric.Inventory(ctx, rig.Driver)
	require.NoError(t, err)
	require.NotZero(t, inventory.Controller.SMGUID)
	require.NotEmpty(t, inventory.Controller.Version)
	require.Positive(t, inventory.Controller.MaxPKeysPerPort)
	var listed []protocol.GUID
	for _, port := range inventory.Topology.Ports {
		listed = append(listed, port.GUID)
		require.NotZero(t, port.SwitchGUID)
	}
	require.NotContains(t, listed, inventory.Controller.SMGUID)
	require.Subset(t, listed, rig.Ports[1:])
	require.NotEmpty(t, inventory.Topology.Switches)
}

func reportsPosture(ctx context.Context, t *testing.T, rig Rig) {
	t.Helper()
	_, err := apply(ctx, t, rig.Driver, 1, set())
	require.NoError(t, err)
	posture, err := rig.Driver.Posture(ctx)
	require.NoError(t, err)
	var items []string
	for _, check := range posture {
		items = append(items, check.Item)
		require.Contains(t, []protocol.Verdict{protocol.True, protocol.False, protocol.Unknown}, check.Verdict)
		if slices.Contains(rig.Untold, check.Item) {
			require.Equal(t, protocol.Unknown, check.Verdict, check.Item)
		} else if check.Item == fabric.PostureDefaultLimited {
			require.Equal(t, protocol.True, check.Verdict)
		}
	}
	require.Equal(t, fabric.PostureItems(), items)
}
