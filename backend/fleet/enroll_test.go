package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

func TestEnrolmentFindsOrMakesWhatItIsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	known := w.Nodes(t, "h100", "h", "bare_metal", 1, 1)[0]
	require.Equal(t, known, w.enroll(t, protocol.NodeAgent, "h100-0").node)
	require.Equal(t, w.Fabric, w.enroll(t, protocol.FabricAgent, "ib0").fabric)

	a := w.enroll(t, protocol.NodeAgent, "new.node-1")
	var state, name string
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT state, name FROM node WHERE id = $1", a.node).Scan(&state, &name))
	require.Equal(t, "discovered", state)
	require.Equal(t, "new.node-1", name)
	other := w.enroll(t, protocol.FabricAgent, "ib1")
	require.NotEqual(t, w.Fabric, other.fabric)
	require.True(t, other.node.IsZero())

	agents, err := w.fleet.List(t.Context(), w.Site)
	require.NoError(t, err)
	require.Len(t, agents, 4)
	none, err := w.fleet.List(t.Context(), ids.Make[ids.Site]())
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestATokenIsGoodAsOftenAndAsLongAsItSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ask := func(token, name string, key []byte) error {
		_, err := w.fleet.Enroll(t.Context(), protocol.EnrollRequest{Token: token, Kind: protocol.NodeAgent, Name: name, PublicKey: key})
		return err
	}
	_, token, expires, err := w.fleet.CreateToken(t.Context(), w.Site, 2, time.Minute)
	require.NoError(t, err)
	require.Equal(t, start().Add(time.Minute), expires)
	require.True(t, strings.HasPrefix(token, "lhe_"))
	var kept int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM enrollment_token WHERE encode(token_hash, 'escape') LIKE '%' || $1 || '%'", token).Scan(&kept))
	require.Zero(t, kept, "the secret itself is not kept")

	first := publicOf(newKey(t))
	require.NoError(t, ask(token, "a", first))
	require.NoError(t, ask(token, "a", first), "the answer was lost: the same identity again, and no second use")
	require.NoError(t, ask(token, "b", publicOf(newKey(t))))
	require.NoError(t, ask(token, "a", first), "also when the token is used up by now")
	require.Equal(t, "enrollment-token-used", fault.CodeOf(ask(token, "c", publicOf(newKey(t)))))
	require.Equal(t, "enrollment-token", fault.CodeOf(ask("lhe_guess", "c", publicOf(newKey(t)))))
	w.clock.Advance(time.Minute)
	err = ask(token, "a", first)
	require.Equal(t, "enrollment-token-expired", fault.CodeOf(err))
	require.Equal(t, fault.Forbidden, fault.KindOf(err))

	for uses, ttl := range map[int]time.Duration{0: time.Minute, 1: 0} {
		_, _, _, err := w.fleet.CreateToken(t.Context(), w.Site, uses, ttl)
		require.Equal(t, fault.Invalid, fault.KindOf(err))
	}
}

func TestManyAtOnceUseATokenNoMoreThanItSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, token, _, err := w.fleet.CreateToken(t.Context(), w.Site, 5, time.Minute)
	require.NoError(t, err)
	won := 0
	for _, err := range together(20, func(i int) error {
		_, err := w.fleet.Enroll(t.Context(), protocol.EnrollRequest{
			Token: token, Kind: protocol.NodeAgent, Name: "n" + string(rune('a'+i)), PublicKey: publicOf(newKey(t)),
		})
		return err
	}) {
		if err == nil {
			won++
			continue
		}
		require.Equal(t, "enrollment-token-used", fault.CodeOf(err))
	}
	require.Equal(t, 5, won)
}

func TestASecondLivingIdentityIsRefusedWithAnAlarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	thief := protocol.EnrollRequest{Token: w.token, Kind: protocol.NodeAgent, Name: "a", PublicKey: publicOf(newKey(t)), BootID: "b"}
	_, err := w.fleet.Enroll(t.Context(), thief)
	require.Equal(t, "second-identity", fault.CodeOf(err))
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	var audited int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM audit_event WHERE action = 'agent.second_identity_refused' AND target = $1", a.node.String()).Scan(&audited))
	require.Equal(t, 1, audited)
	require.Equal(t, 1, w.nudges(t, outbox.Notify, "operator"))
	w.call(t, a) // the first one goes on

	id, err := ids.Read[ids.Agent](a.id)
	require.NoError(t, err)
	require.NoError(t, w.fleet.Revoke(t.Context(), id))
	reply, err := w.fleet.Enroll(t.Context(), thief)
	require.NoError(t, err, "after a revocation it may")
	require.Equal(t, a.node.String(), reply.NodeID)
	require.NotEqual(t, a.id, reply.AgentID)
}

func TestOfManyClaimantsOneGetsTheIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tokens := make([]string, 8) // of their own, so that no token's lock orders them
	for i := range tokens {
		var err error
		_, tokens[i], _, err = w.fleet.CreateToken(t.Context(), w.Site, 1, time.Hour)
		require.NoError(t, err)
	}
	won := 0
	for _, err := range together(len(tokens), func(i int) error {
		_, err := w.fleet.Enroll(t.Context(), protocol.EnrollRequest{Token: tokens[i], Kind: protocol.NodeAgent, Name: "a", PublicKey: publicOf(newKey(t))})
		return err
	}) {
		if err == nil {
			won++
			continue
		}
		require.Equal(t, fault.Conflict, fault.KindOf(err), err)
	}
	require.Equal(t, 1, won)
}

func TestARetiredNodeDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	node := w.Nodes(t, "h100", "h", "bare_metal", 1, 1)[0]
	w.Exec(t, "UPDATE node SET state = 'retired' WHERE id = $1", node)
	_, err := w.fleet.Enroll(t.Context(), protocol.EnrollRequest{Token: w.token, Kind: protocol.NodeAgent, Name: "h100-0", PublicKey: publicOf(newKey(t))})
	require.Equal(t, "node-retired", fault.CodeOf(err))
}

func TestAnImproperEnrolmentSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := protocol.EnrollRequest{Token: w.token, Kind: protocol.NodeAgent, Name: "a", PublicKey: publicOf(newKey(t)), BootID: "b"}
	for pointer, change := range map[string]func(*protocol.EnrollRequest){
		"/kind":          func(r *protocol.EnrollRequest) { r.Kind = "router" },
		"/name":          func(r *protocol.EnrollRequest) { r.Name = "../etc/passwd" },
		"/public_key":    func(r *protocol.EnrollRequest) { r.PublicKey = r.PublicKey[1:] },
		"/serial":        func(r *protocol.EnrollRequest) { r.Serial = strings.Repeat("x", 1_000) },
		"/boot_id":       func(r *protocol.EnrollRequest) { r.BootID = strings.Repeat("x", 1_000) },
		"/agent_version": func(r *protocol.EnrollRequest) { r.AgentVersion = strings.Repeat("x", 1_000) },
	} {
		bad := good
		change(&bad)
		_, err := w.fleet.Enroll(t.Context(), bad)
		require.Equal(t, fault.Invalid, fault.KindOf(err), pointer)
		var f *fault.Fault
		require.ErrorAs(t, err, &f)
		require.Len(t, f.Fields, 1)
		require.Equal(t, pointer, f.Fields[0].Pointer)
	}
}
