package sim_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/sim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// bench is a simulated fabric behind the operations' handlers.
type bench struct {
	*sim.Driver

	ports []protocol.GUID
}

func newBench(t *testing.T) bench {
	t.Helper()
	topology := ibsimtest.FatTree(4, 2)
	driver, err := sim.New(sim.Config{Topology: topology})
	require.NoError(t, err)
	b := bench{Driver: driver}
	for _, port := range topology.Ports {
		b.ports = append(b.ports, port.GUID)
	}
	return b
}

func (b bench) apply(ctx context.Context, t *testing.T, partitions ...protocol.Partition) (protocol.FabricObservation, error) {
	t.Helper()
	spec, err := json.Marshal(protocol.ApplyPartitionsSpec{
		Partitions: partitions, ManagedLow: protocol.FirstPartitionID, ManagedHi: 0x0fff,
	})
	require.NoError(t, err)
	return b.handle(ctx, t, protocol.Operation{Kind: protocol.ApplyPartitions, Epoch: 1, Spec: spec})
}

func (b bench) handle(ctx context.Context, t *testing.T, op protocol.Operation) (protocol.FabricObservation, error) {
	t.Helper()
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: b.Driver, FabricID: "fab", Now: func() time.Time { return time.Unix(0, 0) }})
	outcome, err := handlers[op.Kind].Handle(ctx, op, func(int, string) {})
	seen, given := outcome.Evidence.(protocol.FabricObservation)
	if given {
		require.Equal(t, protocol.PayloadFabricObservation, outcome.PayloadType)
	}
	return seen, err
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	var refusal *operation.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, code, refusal.Code, refusal.Detail)
	require.Equal(t, code != fabric.CodeInvalidSpec, refusal.Retryable, "whether a retry may pass")
}

func (b bench) lease(key protocol.PKey, members ...int) protocol.Partition {
	p := protocol.Partition{PKey: key, Name: "lease-" + string(rune('a'+key)), Members: nil}
	for _, i := range members {
		p.Members = append(p.Members, b.ports[i])
	}
	return p
}

func TestAManagerThatFailsOpenIsNotConverged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Inject(sim.Faults{FailOpen: true})
	seen, err := b.apply(t.Context(), t, b.lease(1, 0, 1))
	requireCode(t, fabric.CodeNotConverged, err)
	require.False(t, seen.Converged)
	for _, check := range seen.Posture {
		if check.Item == fabric.PostureDefaultLimited {
			require.Equal(t, protocol.False, check.Verdict)
		}
	}
	failed := false
	for _, check := range seen.Checks {
		failed = failed || (check.Want == protocol.False && check.Found == protocol.True)
	}
	require.False(t, failed, "there is no stranger among two members of one lease")
	b.Inject(sim.Faults{})
	seen, err = b.apply(t.Context(), t, b.lease(1, 0, 1))
	require.NoError(t, err)
	require.True(t, seen.Converged)
}

func TestAHalfAppliedSetIsNotConverged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Inject(sim.Faults{HalfApply: true})
	seen, err := b.apply(t.Context(), t, b.lease(1, 0, 1, 2, 3))
	requireCode(t, fabric.CodeNotConverged, err)
	require.False(t, seen.Converged)
	require.ErrorContains(t, err, b.ports[1].String())
}

func TestASwitchThatWasLeftOutIsNotConverged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Inject(sim.Faults{HCAOnly: true})
	_, err := b.apply(t.Context(), t, b.lease(1, 0))
	requireCode(t, fabric.CodeNotConverged, err)
	require.ErrorContains(t, err, "switch port")
}

func TestTheHostsOwnReadingContradictsAStaleManager(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.apply(t.Context(), t, b.lease(1, 0, 1), b.lease(2, 2))
	require.NoError(t, err)
	b.Inject(sim.Faults{Stale: true})
	b.OverwriteHCA(b.ports[0], 0x8002, 0x7fff)
	links, err := b.Observe(t.Context(), b.ports[:1])
	require.NoError(t, err)
	own, err := b.ReadPort(t.Context(), b.ports[0])
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8001, 0x7fff}, links[0].HCA.Keys, "the manager tells what was")
	require.Equal(t, []protocol.PKey{0x8002, 0x7fff}, own.Keys, "the host tells what is")
}

func TestAManagerThatIsDownTakesTheSetWhenItIsBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Inject(sim.Faults{Down: true})
	seen, err := b.apply(t.Context(), t, b.lease(1, 0, 1))
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.False(t, seen.Converged, "evidence comes with the failure")
	require.Len(t, seen.Ports, 2)
	for _, check := range seen.Checks {
		require.Equal(t, protocol.Unknown, check.Found)
	}
	b.Inject(sim.Faults{})
	links, err := b.Observe(t.Context(), b.ports[:1])
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8001, 0x7fff}, links[0].HCA.Keys)
}

func TestAnOperationThatIsStoppedWhileTheManagerIsSlowEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Inject(sim.Faults{Delay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.apply(ctx, t, b.lease(1, 0))
		ended <- err
	}()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestTenantsJoinedByAForeignPartitionFailThePathCheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tenants := []protocol.Partition{b.lease(1, 0, 1), b.lease(2, 2)}
	_, err := b.apply(t.Context(), t, tenants...)
	require.NoError(t, err)
	b.OverwriteHCA(b.ports[0], 0x8001, 0x7fff, 0xd000)
	b.OverwriteHCA(b.ports[2], 0x8002, 0x7fff, 0xd000)
	seen, err := b.apply(t.Context(), t, tenants...)
	requireCode(t, fabric.CodePathCheckFailed, err)
	require.True(t, seen.Converged, "the managed range is as it should be")
	require.Equal(t, []protocol.PKey{0x5000}, seen.Foreign)
}

func TestAnAuditThatFindsADeviationHasSucceeded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.apply(t.Context(), t, b.lease(1, 0, 1), b.lease(2, 2))
	require.NoError(t, err)
	b.OverwriteHCA(b.ports[0], 0x8001, 0x7fff, 0xffff)
	spec := json.RawMessage(`{"nonce":"n","ports":null}`)
	seen, err := b.handle(t.Context(), t, protocol.Operation{Kind: protocol.ObserveFabric, Spec: spec})
	require.NoError(t, err)
	require.False(t, seen.Converged)
	require.Equal(t, "n", seen.Nonce)
	require.EqualValues(t, 1, seen.Epoch)
	require.Len(t, seen.Ports, len(b.ports), "no ports means all")
	joined := false
	for _, check := range seen.Checks {
		joined = joined || (check.Want == protocol.False && check.Found == protocol.True)
	}
	require.True(t, joined)
}

func TestASpecThatIsNotOneIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, kind := range []protocol.OperationKind{protocol.ApplyPartitions, protocol.ObserveFabric} {
		_, err := b.handle(t.Context(), t, protocol.Operation{Kind: kind, Spec: json.RawMessage(`{"ports":3,"partitions":4}`)})
		requireCode(t, fabric.CodeInvalidSpec, err)
	}
}

func TestAPortThatWasNeverSeenIsUnknownNotClear(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	links, err := b.Observe(t.Context(), []protocol.GUID{0xdead})
	require.NoError(t, err)
	require.False(t, links[0].HCA.Readable)
	require.False(t, links[0].Switch.Readable)
	_, err = b.ReadPort(t.Context(), 0xdead)
	require.Error(t, err)
}

func TestAnAuditOfNothingIsNotAnAudit(t *testing.T) {
	t.Parallel()
	empty, err := sim.New(sim.Config{})
	require.NoError(t, err)
	_, err = bench{Driver: empty}.handle(t.Context(), t, protocol.Operation{Kind: protocol.ObserveFabric, Spec: json.RawMessage(`{"nonce":"n","ports":null}`)})
	require.ErrorContains(t, err, "no port")
}

// counting counts what a manager is asked.
type counting struct {
	*sim.Driver

	asked atomic.Int32
}

func (c *counting) HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict {
	c.asked.Add(1)
	return c.Driver.HasPath(ctx, from, to)
}

func TestAManagerThatDoesNotSayIsNotWaitedForAtEveryPath(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.apply(t.Context(), t, b.lease(1, 0, 1), b.lease(2, 2, 3), b.lease(3, 4))
	require.NoError(t, err)
	b.Inject(sim.Faults{Down: true})
	driver := &counting{Driver: b.Driver}
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: "fab", Now: func() time.Time { return time.Unix(0, 0) }})
	outcome, err := handlers[protocol.ObserveFabric].Handle(t.Context(), protocol.Operation{Spec: json.RawMessage(`{"nonce":"n","ports":null}`)}, func(int, string) {})
	require.NoError(t, err)
	checks := outcome.Evidence.(protocol.FabricObservation).Checks
	require.Greater(t, len(checks), 4)
	for _, check := range checks {
		require.Equal(t, protocol.Unknown, check.Found)
	}
	require.EqualValues(t, 1, driver.asked.Load())
}
