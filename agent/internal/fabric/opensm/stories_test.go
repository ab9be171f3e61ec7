package opensm_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/protocol"
)

// These tell what a control plane is told, operation by operation, when something goes wrong on a real OpenSM.

// told is one operation's evidence and the reason that it failed for, if it did.
func told(ctx context.Context, t *testing.T, driver fabric.Driver, kind protocol.OperationKind, epoch int64, spec any) (protocol.FabricObservation, error) {
	t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(t, err)
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: "fabric_1", Now: func() time.Time { return time.Unix(0, 0) }})
	outcome, err := handlers[kind].Handle(ctx, protocol.Operation{ID: "op", Kind: kind, Epoch: epoch, Spec: raw}, func(int, string) {})
	seen, _ := outcome.Evidence.(protocol.FabricObservation) // empty when nothing was done
	return seen, err
}

func (s subnet) audit(ctx context.Context, t *testing.T) protocol.FabricObservation {
	t.Helper()
	seen, err := told(ctx, t, s.Driver, protocol.ObserveFabric, 0, protocol.ObserveFabricSpec{Nonce: "n", Ports: []protocol.GUID{}})
	require.NoError(t, err)
	require.Len(t, seen.Ports, len(s.ports))
	return seen
}

func applySpec(desired fabric.Desired, repair ...protocol.GUID) protocol.ApplyPartitionsSpec {
	return protocol.ApplyPartitionsSpec{
		Nonce: "n", Partitions: desired.Partitions, ManagedLow: desired.Managed.Low, ManagedHi: desired.Managed.High, AllowShrink: desired.AllowShrink,
		Observe: []protocol.GUID{}, Repair: repair,
	}
}

// limited is whether hosts are limited members of the default partition, as the posture says.
func limited(seen protocol.FabricObservation) protocol.Verdict {
	for _, check := range seen.Posture {
		if check.Item == fabric.PostureDefaultLimited {
			return check.Verdict
		}
	}
	return ""
}

// open lists the ports that are full members of the default partition.
func open(seen protocol.FabricObservation) []protocol.GUID {
	var found []protocol.GUID
	for _, link := range seen.Ports {
		if slices.Contains(link.HCA.Keys, protocol.DefaultFull) {
			found = append(found, link.GUID)
		}
	}
	return found
}

func TestGarbageInThePartitionFileIsToldBeforeOpenSMOpensTheFabricOnIt(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired))
	require.NoError(t, err)
	require.Equal(t, protocol.True, limited(s.audit(ctx, t)))

	require.NoError(t, os.WriteFile(s.partitionsFile(), []byte("who did this?\n"), 0o600))
	seen := s.audit(ctx, t)
	require.Equal(t, protocol.False, limited(seen), "no lease is handed over from here on")
	require.Empty(t, open(seen), "OpenSM has not read it yet")
	require.NoError(t, s.Subnet.Hangup(ctx))
	s.awaitOpen(ctx, t)
	require.Eventually(t, func() bool { return len(open(s.audit(ctx, t))) == len(s.ports) }, 20*time.Second, 10*time.Millisecond)
	require.False(t, s.audit(ctx, t).Converged)

	seen, err = told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired, s.ports...)) // the control plane's repair
	require.NoError(t, err)
	require.True(t, seen.Converged)
	seen = s.audit(ctx, t)
	require.True(t, seen.Converged)
	require.Empty(t, open(seen))
	require.Equal(t, protocol.True, limited(seen))
}

func TestAHandEditThatParsesIsToldAtTheNextAuditAndPutBack(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	desired.Managed = fabric.Range{Low: 1, High: 0xff}
	_, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired))
	require.NoError(t, err)
	written, err := os.ReadFile(s.partitionsFile())
	require.NoError(t, err)
	for name, edit := range map[string]struct {
		from, to string
		told     protocol.Verdict
	}{
		"a stranger in a tenant's partition": {s.ports[1].String(), s.ports[2].String(), protocol.False},
		"an administrator's own partition":   {"", "storage=0x0700 :\n    " + s.ports[3].String() + "=full;\n", protocol.True},
	} {
		text := string(written) + edit.to
		if edit.from != "" {
			text = strings.ReplaceAll(string(written), edit.from, edit.to)
			require.NotEqual(t, string(written), text)
		}
		require.NoError(t, os.WriteFile(s.partitionsFile(), []byte(text), 0o600), name)
		require.Equal(t, edit.told, limited(s.audit(ctx, t)), name)
		_, err = told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired))
		require.NoError(t, err, name)
		seen := s.audit(ctx, t)
		require.Equal(t, protocol.True, limited(seen), name)
		require.True(t, seen.Converged, name)
	}
}

func TestALeafThatIsCutOffDuringARevokeKeepsTheLeaseDrainingUntilItIsBack(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 2)
	// Ports 1, 3, 5, 7 hang on the second leaf; the manager is on the first.
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2], s.ports[3]))
	_, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired))
	require.NoError(t, err)
	require.NoError(t, s.Subnet.Console(ctx, `Unlink "leaf-1"[5]`))

	released := set(tenant(6, "lease-b", s.ports[2], s.ports[3]))
	seen, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 2, applySpec(released))
	requireCode(t, fabric.CodeNotConverged, err)
	require.ErrorContains(t, err, s.ports[1].String()+" HCA port: could not be read", "the reason that the lease shows")
	require.False(t, seen.Converged)
	for _, link := range seen.Ports {
		reached := link.GUID == s.ports[0]
		require.Equal(t, reached, link.HCA.Readable, "%v", link.GUID)
		require.Equal(t, reached, link.Switch.Readable, "unknown is not clear: %v", link.GUID)
	}
	require.Contains(t, linkOf(seen, s.ports[0]).HCA.Keys, protocol.DefaultLimited)
	require.NotContains(t, linkOf(seen, s.ports[0]).HCA.Keys, protocol.PKey(0x8005))

	require.NoError(t, s.Subnet.Console(ctx, `ReLink "leaf-1"[5]`))
	require.Eventually(t, func() bool { // as the control plane tries again, with what it knows of
		seen, err = told(ctx, t, s.Driver, protocol.ApplyPartitions, 2, applySpec(released, s.ports[0], s.ports[1]))
		return err == nil
	}, 50*time.Second, 100*time.Millisecond)
	require.True(t, seen.Converged)
	require.Equal(t, []protocol.PKey{protocol.DefaultLimited}, linkOf(seen, s.ports[1]).HCA.Keys)
	requireAll(ctx, t, s.Driver, released, s.ports)
}

func linkOf(seen protocol.FabricObservation, port protocol.GUID) protocol.LinkState {
	for _, link := range seen.Ports {
		if link.GUID == port {
			return link
		}
	}
	return protocol.LinkState{}
}

// stricken is a manager that begins with the set, and dies of it.
type stricken struct {
	opensm.Manager

	subnet *ibsim.Subnet
}

func (m stricken) Hangup(ctx context.Context) error {
	if err := m.Manager.Hangup(ctx); err != nil {
		return err
	}
	return m.subnet.KillManager(ctx)
}

func TestAnOpenSMThatIsKilledInTheMiddleOfAChangeCompletesItWhenItIsBack(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 16, 4)
	before := set(tenant(5, "lease-a", s.ports[:32]...))
	_, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(before))
	require.NoError(t, err)
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Manager = stricken{c.Manager, s.Subnet} })
	after := set(tenant(6, "lease-b", s.ports[16:48]...))
	seen, err := told(ctx, t, driver, protocol.ApplyPartitions, 2, applySpec(after))
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.False(t, seen.Converged, "and the evidence says how far it came")
	require.EqualValues(t, 2, seen.Epoch)
	require.False(t, s.audit(ctx, t).Converged)
	_, err = told(ctx, t, driver, protocol.ApplyPartitions, 1, applySpec(before))
	requireCode(t, fabric.CodeStaleEpoch, err)

	require.NoError(t, s.Subnet.StartManager(ctx))
	seen, err = told(ctx, t, s.Driver, protocol.ApplyPartitions, 2, applySpec(after))
	require.NoError(t, err)
	require.True(t, seen.Converged)
	require.True(t, s.audit(ctx, t).Converged)
	requireAll(ctx, t, s.Driver, after, s.ports)
}

func TestATableThatAnSMPOverwroteIsFoundByTheAuditAndRepaired(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 2)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2], s.ports[3]))
	_, err := told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired))
	require.NoError(t, err)
	overwrite(t, s.Simulated, s.ports[2], 0, []protocol.PKey{0x8006, 0x7fff, 0x8005}) // lease-b's host is let into lease-a
	overwrite(t, s.Simulated, s.ports[2], 1, []protocol.PKey{0x8006, 0x7fff, 0x8005})
	seen := s.audit(ctx, t)
	require.False(t, seen.Converged)
	require.Contains(t, linkOf(seen, s.ports[2]).HCA.Keys, protocol.PKey(0x8005))
	for range 3 { // neither signals nor time help: OpenSM trusts its cache
		sweeps := s.Subnet.Sweeps()
		require.NoError(t, s.Subnet.Hangup(ctx))
		require.Eventually(t, func() bool { return s.Subnet.Sweeps() > sweeps }, 20*time.Second, 5*time.Millisecond)
	}
	require.False(t, s.audit(ctx, t).Converged)

	seen, err = told(ctx, t, s.Driver, protocol.ApplyPartitions, 1, applySpec(desired, s.ports[2]))
	require.NoError(t, err)
	require.Equal(t, s.ports[2:3], seen.Repaired)
	require.True(t, s.audit(ctx, t).Converged)
}

func TestAfterAFailOverTheNewManagerIsKnownAndNoPathIsAskedForThatItWouldNotTell(t *testing.T) {
	t.Parallel()
	ctx, s, b := newPair(t, 4)
	standbyPort := s.ports[3]
	for _, driver := range []fabric.Driver{s.Driver, b.Driver} {
		_, err := driver.Apply(ctx, set(tenant(5, "lease-a", s.ports[0])), 1)
		require.NoError(t, err)
	}
	controller, err := s.Controller(ctx)
	require.NoError(t, err)
	require.Equal(t, s.Subnet.ManagerPort(), controller.SMGUID)
	require.NotEmpty(t, s.audit(ctx, t).Checks)
	s.failOver(ctx, t, b, s.ports[1])
	require.Eventually(t, func() bool {
		controller, err = s.Controller(ctx)
		return err == nil && controller.SMGUID == standbyPort
	}, 30*time.Second, 10*time.Millisecond)
	var seen protocol.FabricObservation
	require.Eventually(t, func() bool {
		seen = s.audit(ctx, t)
		return slices.Contains(linkOf(seen, standbyPort).HCA.Keys, protocol.DefaultFull) && !s.MayAskPaths(ctx)
	}, 30*time.Second, 50*time.Millisecond, "the new manager is a full member of the default partition: its port is named to audits")
	seen = s.audit(ctx, t)
	require.Empty(t, seen.Checks, "it would say of every pair that there is no path, which would pass for isolation")
	require.Equal(t, []protocol.PKey{0x8005, 0x7fff}, linkOf(seen, s.ports[0]).HCA.Keys, "the tables are the proof")
}
