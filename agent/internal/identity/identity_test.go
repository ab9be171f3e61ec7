package identity_test

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestAKeyIsMadeOnceAndOnlyItsOwnerMayReadIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agent")
	first, err := identity.Open(dir)
	require.NoError(t, err)
	require.False(t, first.Enrolled())
	info, err := os.Stat(filepath.Join(dir, "key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.NoError(t, first.Enroll(identity.Record{AgentID: "agent_1", NodeID: "node_1"}))
	second, err := identity.Open(dir)
	require.NoError(t, err)
	require.Equal(t, first.PublicKey(), second.PublicKey())
	require.Equal(t, "agent_1", second.Record().AgentID)
	require.True(t, second.Enrolled())
}

func TestAKeyThatOthersCanReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := identity.Open(dir)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(filepath.Join(dir, "key"), 0o640))
	_, err = identity.Open(dir)
	require.ErrorContains(t, err, "only its owner")
}

func TestAnEnvelopeVerifiesWithThePublicKey(t *testing.T) {
	t.Parallel()
	id, err := identity.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, id.Enroll(identity.Record{AgentID: "agent_1"}))
	envelope := id.Sign(protocol.PayloadWipeEvidence, []byte(`{"a":1}`))
	require.Equal(t, "agent_1", envelope.Signatures[0].KeyID)
	require.True(t, ed25519.Verify(id.PublicKey(), protocol.PAE(envelope.PayloadType, envelope.Payload), envelope.Signatures[0].Sig))
	require.False(t, ed25519.Verify(id.PublicKey(), protocol.PAE(protocol.PayloadPKeyObservation, envelope.Payload), envelope.Signatures[0].Sig))
}

func TestATokenBindsMethodPathAndBodyAndLivesForAMinuteAtMost(t *testing.T) {
	t.Parallel()
	id, err := identity.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, id.Enroll(identity.Record{AgentID: "agent_1"}))
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	signed, err := id.Token("POST", "/agent/v1/heartbeat?x=1", []byte("body"), now)
	require.NoError(t, err)

	claims := jwt.MapClaims{}
	_, err = jwt.ParseWithClaims(signed, claims, func(*jwt.Token) (any, error) { return id.PublicKey(), nil },
		jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithTimeFunc(func() time.Time { return now }), jwt.WithIssuedAt())
	require.NoError(t, err)
	require.Equal(t, "agent_1", claims["iss"])
	require.Equal(t, "agent_1", claims["sub"])
	require.Equal(t, "POST", claims["htm"])
	require.Equal(t, "/agent/v1/heartbeat?x=1", claims["htu"])
	require.Equal(t, protocol.BodyHash([]byte("body")), claims["bh"])
	require.NotEmpty(t, claims["jti"])
	expires, err := claims.GetExpirationTime()
	require.NoError(t, err)
	issued, err := claims.GetIssuedAt()
	require.NoError(t, err)
	require.Equal(t, protocol.MaxTokenAge, expires.Sub(issued.Time))
}
