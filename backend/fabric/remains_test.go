package fabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// TestANodeThatNeverJoinedIsLookedAtToo has a lease one of whose nodes was replaced before it joined: no sweep has ever read its port.
func TestANodeThatNeverJoinedIsLookedAtToo(t *testing.T) {
	t.Parallel()
	w, id := isolated(t)
	w.allocate(id, 1, w.nodes[2])
	w.leave(id)
	w.sweep()
	require.Equal(t, fabric.Gone, w.status(id))
	w.witness(id, fabric.AfterRelease, 1)
	verdict, statement := w.attest(id, fabric.AfterRelease)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
	require.Len(t, statement.Predicate.Ports, 3)
}

func TestOnlyThePortsThatAreNotProvedAreNamed(t *testing.T) {
	t.Parallel()
	w, id := isolated(t)
	w.leave(id)
	uncleared, err := w.fabric.Uncleared(t.Context(), id)
	require.NoError(t, err)
	require.ElementsMatch(t, []protocol.GUID{w.nodes[0].port, w.nodes[1].port}, uncleared)
	w.sweep()
	uncleared, err = w.fabric.Uncleared(t.Context(), id)
	require.NoError(t, err)
	require.Empty(t, uncleared)

	w.nodes[1].silent = true
	w.witness(id, fabric.AfterRelease, 1)
	made, verdict, err := w.fabric.Attest(t.Context(), id, fabric.AfterRelease)
	require.NoError(t, err)
	require.Equal(t, fabric.Undecided, verdict)
	unproved, err := w.fabric.Unproved(t.Context(), made)
	require.NoError(t, err)
	require.Equal(t, []protocol.GUID{w.nodes[1].port}, unproved)
	_, err = w.fabric.Unproved(t.Context(), ids.Make[ids.Attestation]())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

// TestAFaultOfTheFabricNamesNobodyElsesPort has the words that tenants read in leases and attestations: they are about their own ports, and say of
// others only that there is something.
func TestAFaultOfTheFabricNamesNobodyElsesPort(t *testing.T) {
	t.Parallel()
	w, id := isolated(t)
	other := w.lease(w.nodes[2])
	w.join(other)
	require.True(t, w.plan())
	orders := w.orders()
	require.Len(t, orders, 1)
	operation, err := ids.Read[ids.Operation](orders[0].ID)
	require.NoError(t, err)
	stranger := w.nodes[1].port.String()
	refusal := protocol.Result{State: protocol.Failed, Fault: &protocol.Fault{Code: "unknown-port", Detail: "port " + stranger + " was never seen", Retryable: true}}
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(w.manager), operation, refusal))
	require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
	require.Contains(t, w.words(other), "could not do it (unknown-port)")
	require.NotContains(t, w.words(other), stranger)

	w.Exec(t, `INSERT INTO drift (id, fabric_id, port_guid, kind, what, onset, seen_at) VALUES ($1, $2, $3, 'fail_open', 'is a full member', $4, $4)`,
		ids.Make[ids.Drift](), w.Fabric, stranger, start())
	require.Contains(t, w.words(id), "does not keep tenants apart")
	require.NotContains(t, w.words(id), stranger)
}
