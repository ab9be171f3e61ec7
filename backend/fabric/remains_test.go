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
