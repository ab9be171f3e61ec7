package conformance

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Fault is one way to fail, from Begin to End.
type Fault struct {
	Name       string
	Begin, End func(t *testing.T)
	// Passing: sets are applied all the same, late or after some trouble.
	Passing bool
}

// pauseBetweenRetries is shorter than the control plane's.
const pauseBetweenRetries = 20 * time.Millisecond

// staysHonest goes through the life of a lease while something fails: ports join and leave, a lease ends, everything is audited. No
// port may be called clean that is not, no operation may succeed that did not, and once the fault is over the same operation makes
// good what could not be done.
func staysHonest(t *testing.T, newRig func(t *testing.T) Rig) {
	t.Helper()
	for i, fault := range newRig(t).allFaults() {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
			defer cancel()
			rig := newRig(t)
			rig.suffer(ctx, t, rig.allFaults()[i])
		})
	}
}

// allFaults are the rig's own and those that every rig has.
func (r Rig) allFaults() []Fault {
	faults := append([]Fault{}, r.Faults...)
	faults = append(faults, Fault{
		Name:  "a port is cut off while it should leave",
		Begin: func(t *testing.T) { t.Helper(); r.Cut(t, r.Ports[1]) },
		End:   func(t *testing.T) { t.Helper(); r.Join(t, r.Ports[1]) },
	})
	if r.WordOnly {
		return faults
	}
	return append(
		faults,
		Fault{
			Name:  "a stranger's port was given a lease's key",
			Begin: func(t *testing.T) { t.Helper(); r.OverwriteHCA(t, r.Ports[5], 0x8005, 0x7fff) },
			End:   func(t *testing.T) { t.Helper(); r.OverwriteHCA(t, r.Ports[5], 0x7fff) },
		},
		Fault{
			Name:  "a switch port was opened",
			Begin: func(t *testing.T) { t.Helper(); r.OverwriteSwitch(t, r.Ports[5], 0x7fff, 0xffff) },
			End:   func(t *testing.T) { t.Helper(); r.OverwriteSwitch(t, r.Ports[5], 0x7fff) },
		},
	)
}

func (r Rig) suffer(ctx context.Context, t *testing.T, fault Fault) {
	t.Helper()
	p := r.Ports
	before := set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2], p[3]))
	moved := set(tenant(5, "lease-a", p[0], p[4]), tenant(6, "lease-b", p[2], p[3]))
	ended := set(tenant(5, "lease-a", p[0], p[4]))
	seen, err := apply(ctx, t, r.Driver, 1, before, p...)
	require.NoError(t, err)
	require.True(t, seen.Converged)

	fault.Begin(t)
	for i, desired := range []fabric.Desired{moved, ended} {
		seen, err := apply(ctx, t, r.Driver, int64(i+2), desired, p...)
		if fault.Passing {
			require.NoError(t, err, "it is late or troubled, and works")
		} else {
			require.Error(t, err, "a set that is not everywhere has not been applied")
		}
		r.requireHonest(ctx, t, r.Driver, seen)
	}
	seen, _ = audit(ctx, t, r.Driver) // failing is honest too
	r.requireHonest(ctx, t, r.Driver, seen)
	restarted := r.Reopen(t)
	seen, _ = audit(ctx, t, restarted)
	r.requireHonest(ctx, t, restarted, seen)

	fault.End(t)
	for seen, err = apply(ctx, t, r.Driver, 3, ended, p...); err != nil && backoff.Wait(ctx, pauseBetweenRetries, nil) == nil; {
		r.requireHonest(ctx, t, r.Driver, seen)
		seen, err = apply(ctx, t, r.Driver, 3, ended, p...)
	}
	require.NoError(t, err, "the same operation, done again and again, makes it good")
	require.True(t, seen.Converged)
	requireTables(t, seen, p[4], 0x8005, 0x7fff)
	for _, left := range []protocol.GUID{p[1], p[2], p[3]} {
		requireTables(t, seen, left, 0x7fff)
	}
	r.requireHonest(ctx, t, r.Driver, seen)
}

// requireHonest requires that each port which looks right in the evidence is right, and that evidence which says that all are says
// so of some.
func (r Rig) requireHonest(ctx context.Context, t *testing.T, driver fabric.Driver, seen protocol.FabricObservation) {
	t.Helper()
	state, err := driver.Current(ctx)
	require.NoError(t, err)
	judge := fabric.NewJudge(state.Desired)
	for _, link := range seen.Ports {
		if judge.Disagreement(link) == "" {
			require.Empty(t, judge.Disagreement(r.truth(ctx, t, driver, link.GUID)), "%v is called clean", link.GUID)
		} else {
			require.False(t, seen.Converged, "%v is not right", link.GUID)
		}
	}
	require.False(t, seen.Converged && len(seen.Ports) == 0, "nothing was looked at")
}

func (r Rig) truth(ctx context.Context, t *testing.T, driver fabric.Driver, port protocol.GUID) protocol.LinkState {
	t.Helper()
	if r.Truth != nil {
		return r.Truth(t, driver, port)
	}
	links, err := r.Reopen(t).Observe(ctx, []protocol.GUID{port})
	require.NoError(t, err)
	return links[0]
}

// audit observes everything.
func audit(ctx context.Context, t *testing.T, driver fabric.Driver) (protocol.FabricObservation, error) {
	t.Helper()
	spec, err := json.Marshal(protocol.ObserveFabricSpec{Nonce: "audit"})
	require.NoError(t, err)
	return handle(ctx, t, driver, protocol.Operation{ID: "op", Kind: protocol.ObserveFabric, Spec: spec})
}
