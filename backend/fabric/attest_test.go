package fabric_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// isolated returns a world in which a lease of two nodes is isolated.
func isolated(t *testing.T) (*world, ids.Lease) {
	t.Helper()
	w := newWorld(t, 3)
	id := w.lease(w.nodes[0], w.nodes[1])
	w.join(id)
	w.sweep()
	require.Equal(t, fabric.Isolated, w.status(id))
	return w, id
}

func TestTheWitnessesDecideTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(w *world)
		verdict fabric.Verdict
		reason  string
	}{
		"both see it right":             {func(*world) {}, fabric.Proven, ""},
		"a node sees another key":       {func(w *world) { w.nodes[1].lies = []protocol.PKey{0x8001, 0x7fff, 0x8002} }, fabric.Refuted, "holds 0x8002"},
		"a node lacks the key":          {func(w *world) { w.nodes[1].lies = []protocol.PKey{0x7fff} }, fabric.Refuted, "lacks 0x8001"},
		"not at index 0":                {func(w *world) { w.nodes[1].lies = []protocol.PKey{0x7fff, 0x8001} }, fabric.Refuted, "at index 0"},
		"full in the default partition": {func(w *world) { w.nodes[1].lies = []protocol.PKey{0x8001, 0x7fff, 0xffff} }, fabric.Refuted, "full member of the default"},
		"a foreign key is not ours": {func(w *world) {
			w.Exec(w.t, "UPDATE fabric SET managed_high = 4095")
			w.nodes[1].lies = []protocol.PKey{0x8001, 0x7fff, 0x9000}
		}, fabric.Proven, ""},
		"a node is silent":          {func(w *world) { w.nodes[0].silent = true }, fabric.Undecided, "has not said anything"},
		"a node cannot read":        {func(w *world) { w.subnet.of(w.nodes[0].port).dark = true }, fabric.Undecided, "could not be read"},
		"the first word is too old": {func(w *world) { w.clock.Advance(11 * time.Minute); w.manager.id = "" }, fabric.Undecided, "has not said anything"},
		"another member than wanted": {func(w *world) {
			w.Exec(w.t, "UPDATE partition_member SET wanted = false WHERE hca_port_id = (SELECT id FROM hca_port WHERE node_id = $1)", w.nodes[0].node)
		}, fabric.Undecided, "is not a member"},
		"the rows are not there yet": {func(w *world) { w.Exec(w.t, "UPDATE partition SET state = 'programmed'") }, fabric.Undecided, "partition is programmed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, id := isolated(t)
			manager := *w.manager
			c.change(w)
			if w.manager.id == "" { // the manager's agent is away
				require.NoError(t, w.fabric.Witness(t.Context(), id, fabric.BeforeActive, 1))
				for _, m := range w.nodes {
					found, err := w.fleet.Poll(t.Context(), w.call(&m.agent), 0)
					require.NoError(t, err)
					for _, op := range found {
						w.observe(m, op)
					}
				}
				*w.manager = manager
			} else {
				w.witness(id, fabric.BeforeActive, 1)
			}
			verdict, statement := w.attest(id, fabric.BeforeActive)
			require.Equal(t, c.verdict, verdict, statement.Predicate.Reasons)
			require.Contains(t, strings.Join(statement.Predicate.Reasons, "; "), c.reason)
			require.Equal(t, c.verdict == fabric.Proven, len(statement.Predicate.Reasons) == 0)
		})
	}
}

func TestThePathQueriesAreACrossCheck(t *testing.T) {
	t.Parallel()
	for found, want := range map[protocol.Verdict]fabric.Verdict{
		protocol.False: fabric.Proven, protocol.True: fabric.Refuted, protocol.Unknown: fabric.Undecided,
	} {
		w := newWorld(t, 2)
		id := w.lease(w.nodes[0])
		w.join(id)
		w.subnet.paths[w.nodes[0].port] = found
		w.sweep()
		w.witness(id, fabric.BeforeActive, 1)
		verdict, statement := w.attest(id, fabric.BeforeActive)
		require.Equal(t, want, verdict, "a path to a stranger: %s", found)
		require.Len(t, statement.Predicate.Checks, 1)
	}
}

func TestALaterRoundTakesTheEarlierOnesPlace(t *testing.T) {
	t.Parallel()
	w, id := isolated(t)
	w.nodes[0].silent = true
	w.witness(id, fabric.BeforeActive, 1)
	verdict, _ := w.attest(id, fabric.BeforeActive)
	require.Equal(t, fabric.Undecided, verdict)
	w.nodes[0].silent = false
	require.NoError(t, w.fabric.Witness(t.Context(), id, fabric.BeforeActive, 1), "the same round again changes nothing")
	require.Equal(t, 2, w.count("SELECT count(*) FROM operation WHERE kind = 'observe_pkeys'"))
	w.clock.Advance(20 * time.Minute)
	w.witness(id, fabric.BeforeActive, 2)
	verdict, statement := w.attest(id, fabric.BeforeActive)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
	nonces := map[string]bool{}
	for _, witness := range statement.Predicate.Witnesses {
		nonces[witness.Nonce] = true
	}
	require.Len(t, nonces, 1, "the old word of the fabric's agent was not good any more, so it was asked anew")
}

func TestALeaseThatNeverHadAPartitionIsShownClearToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.lease(w.nodes[0])
	w.leave(id)
	require.Equal(t, fabric.None, w.status(id))
	w.witness(id, fabric.AfterRelease, 1)
	verdict, statement := w.attest(id, fabric.AfterRelease)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
	require.Len(t, statement.Predicate.Witnesses, 2)

	w.subnet.of(w.nodes[0].port).sw = []protocol.PKey{0x8007, 0x7fff}
	w.witness(id, fabric.AfterRelease, 2)
	verdict, _ = w.attest(id, fabric.AfterRelease)
	require.Equal(t, fabric.Refuted, verdict)
}

func TestATenantsKeyThatStaysIsRefutedAfterRelease(t *testing.T) {
	t.Parallel()
	w, id := isolated(t)
	w.leave(id)
	w.sweep()
	require.Equal(t, fabric.Gone, w.status(id))
	w.nodes[0].lies = []protocol.PKey{0x8001, 0x7fff}
	w.witness(id, fabric.AfterRelease, 1)
	verdict, statement := w.attest(id, fabric.AfterRelease)
	require.Equal(t, fabric.Refuted, verdict)
	require.Contains(t, strings.Join(statement.Predicate.Reasons, ";"), "its own node's reading")
}

// proof returns a good attestation's envelope with the keys to check it.
func proof(t *testing.T) (protocol.Envelope, *world) {
	t.Helper()
	w, id := isolated(t)
	w.witness(id, fabric.BeforeActive, 1)
	attestation, verdict, err := w.fabric.Attest(t.Context(), id, fabric.BeforeActive)
	require.NoError(t, err)
	require.Equal(t, fabric.Proven, verdict)
	return w.envelope(attestation), w
}

func TestAForgedProofIsRefused(t *testing.T) {
	t.Parallel()
	envelope, w := proof(t)
	_, err := fabric.VerifyAttestation(envelope, w.published())
	require.NoError(t, err)
	_, err = fabric.VerifyAttestation(envelope, nil)
	require.Equal(t, "envelope-signature", fault.CodeOf(err))
	other := envelope
	other.PayloadType = protocol.PayloadWipeEvidence
	_, err = fabric.VerifyAttestation(other, w.published())
	require.Equal(t, "envelope-type", fault.CodeOf(err))
	tampered := envelope
	tampered.Payload = append([]byte(nil), envelope.Payload...)
	tampered.Payload[len(tampered.Payload)/2] ^= 1
	_, err = fabric.VerifyAttestation(tampered, w.published())
	require.Equal(t, "envelope-signature", fault.CodeOf(err))

	// Even the platform cannot sign a verdict that the witnesses' words do not bear out.
	for name, c := range map[string]struct {
		change func(s *fabric.Statement)
		code   string
	}{
		"no change":                 {func(*fabric.Statement) {}, ""},
		"another verdict":           {func(s *fabric.Statement) { s.Predicate.Verdict = fabric.Refuted }, "verdict"},
		"a witness left out":        {func(s *fabric.Statement) { s.Predicate.Witnesses = s.Predicate.Witnesses[1:] }, "verdict"},
		"another agent's key":       {func(s *fabric.Statement) { s.Predicate.Witnesses[0].PublicKey = make([]byte, 32) }, "verdict"},
		"another nonce":             {func(s *fabric.Statement) { s.Predicate.Witnesses[1].Nonce = "x" }, "verdict"},
		"no nonce":                  {func(s *fabric.Statement) { s.Predicate.Witnesses[1].Nonce = "" }, "verdict"},
		"a witness's word is old":   {func(s *fabric.Statement) { s.Predicate.IssuedAt = s.Predicate.IssuedAt.Add(time.Hour) }, "verdict"},
		"another node's port":       {func(s *fabric.Statement) { s.Predicate.Ports[0].Node = s.Predicate.Ports[1].Node }, "verdict"},
		"a port left out":           {func(s *fabric.Statement) { s.Predicate.Ports = s.Predicate.Ports[1:] }, "verdict"},
		"another subject":           {func(s *fabric.Statement) { s.Subject[0].Digest["sha256"] = "00" }, "statement"},
		"no subject":                {func(s *fabric.Statement) { s.Subject = nil }, "statement"},
		"another partition":         {func(s *fabric.Statement) { s.Predicate.Desired = []byte(`{}`) }, "statement"},
		"another type of predicate": {func(s *fabric.Statement) { s.PredicateType = "x" }, "statement"},
	} {
		var statement fabric.Statement
		require.NoError(t, json.Unmarshal(envelope.Payload, &statement))
		c.change(&statement)
		payload, err := json.Marshal(statement)
		require.NoError(t, err)
		again, err := fabric.Sealer{Key: w.key}.Sign(t.Context(), protocol.PayloadInToto, payload)
		require.NoError(t, err)
		_, err = fabric.VerifyAttestation(again, w.published())
		require.Equal(t, c.code, fault.CodeOf(err), name)
	}
}

// plainKey is a published key as the DSSE library wants it.
type plainKey struct {
	kid string
	key ed25519.PublicKey
}

func (k plainKey) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(k.key, data, sig) {
		return fault.New(fault.Invalid, "signature", "it does not verify")
	}
	return nil
}
func (k plainKey) KeyID() (string, error)   { return k.kid, nil }
func (k plainKey) Public() crypto.PublicKey { return k.key }

func TestAnyDSSEToolVerifiesTheEnvelope(t *testing.T) {
	t.Parallel()
	envelope, w := proof(t)
	kid, err := w.key.KeyID()
	require.NoError(t, err)
	raw, err := json.Marshal(envelope)
	require.NoError(t, err)
	var theirs dsse.Envelope
	require.NoError(t, json.Unmarshal(raw, &theirs))
	verifier, err := dsse.NewEnvelopeVerifier(plainKey{kid, w.key.Public()})
	require.NoError(t, err)
	accepted, err := verifier.Verify(t.Context(), &theirs)
	require.NoError(t, err)
	require.Len(t, accepted, 1)
	theirs.Payload = base64.StdEncoding.EncodeToString([]byte("{}"))
	_, err = verifier.Verify(t.Context(), &theirs)
	require.Error(t, err)

	var generic map[string]any
	require.NoError(t, json.Unmarshal(envelope.Payload, &generic))
	require.Equal(t, "https://in-toto.io/Statement/v1", generic["_type"])
	require.NotEmpty(t, generic["subject"])
	require.Equal(t, fabric.PredicateType, generic["predicateType"])
}

func FuzzAnEnvelopeIsVerifiedOrRefusedAndNeverMore(f *testing.F) {
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","predicateType":"https://leasehold.dev/attestation/isolation/v1","subject":[],"predicate":{}}`))
	f.Add([]byte(`{"predicate":{"desired":null,"witnesses":[{"envelope":{}}],"ports":[{}]}}`))
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, payload []byte) {
		envelope := protocol.Envelope{PayloadType: protocol.PayloadInToto, Payload: payload, Signatures: []protocol.Signature{
			{KeyID: "k", Sig: ed25519.Sign(private, protocol.PAE(protocol.PayloadInToto, payload))},
		}}
		statement, err := fabric.VerifyAttestation(envelope, map[string]ed25519.PublicKey{"k": public})
		require.True(t, err != nil || statement.Predicate.Verdict != fabric.Proven, "nobody can prove anything without witnesses")
	})
}
