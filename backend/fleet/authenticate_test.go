package fleet_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

func TestOnlyAnAgentsOwnFreshTokenForThisRequestIsGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b")
	now := w.clock.Now()
	for name, c := range map[string]struct {
		change func(jwt.MapClaims)
		code   string
	}{
		"good": {func(jwt.MapClaims) {}, ""},
		"a little ahead": {func(c jwt.MapClaims) {
			c["iat"], c["exp"] = now.Add(4*time.Second).Unix(), now.Add(60*time.Second).Unix()
		}, ""},
		"another method":                {func(c jwt.MapClaims) { c[protocol.ClaimMethod] = "GET" }, "token-for-another-request"},
		"another path":                  {func(c jwt.MapClaims) { c[protocol.ClaimPath] = "/x" }, "token-for-another-request"},
		"no path":                       {func(c jwt.MapClaims) { delete(c, protocol.ClaimPath) }, "token-for-another-request"},
		"no id":                         {func(c jwt.MapClaims) { delete(c, "jti") }, "token-invalid"},
		"a huge id":                     {func(c jwt.MapClaims) { c["jti"] = strings.Repeat("x", 100) }, "token-invalid"},
		"issued by another":             {func(c jwt.MapClaims) { c["iss"], c["sub"] = b.id, b.id }, "token-invalid"},
		"about another":                 {func(c jwt.MapClaims) { c["sub"] = b.id }, "token-invalid"},
		"nobody's":                      {func(c jwt.MapClaims) { delete(c, "iss"); delete(c, "sub") }, "token-invalid"},
		"of something that is no agent": {func(c jwt.MapClaims) { c["iss"], c["sub"] = "node_1", "node_1" }, "token-invalid"},
		"of an unknown agent": {func(c jwt.MapClaims) {
			c["iss"] = ids.Make[ids.Agent]().String()
			c["sub"] = c["iss"]
		}, "agent-unknown"},
		"expired": {func(c jwt.MapClaims) {
			c["iat"], c["exp"] = now.Add(-2*time.Minute).Unix(), now.Add(-time.Minute).Unix()
		}, "token-out-of-time"},
		"from the future": {func(c jwt.MapClaims) { c["iat"], c["exp"] = now.Add(time.Hour).Unix(), now.Add(61*time.Minute).Unix() }, "token-out-of-time"},
		"without an end":  {func(c jwt.MapClaims) { delete(c, "exp") }, "token-invalid"},
		"without a start": {func(c jwt.MapClaims) { delete(c, "iat") }, "token-invalid"},
		"too long":        {func(c jwt.MapClaims) { c["exp"] = now.Add(61 * time.Second).Unix() }, "token-too-long"},
		"numbers as text": {func(c jwt.MapClaims) { c["exp"] = "soon" }, "token-invalid"},
	} {
		claims := a.claims(now)
		c.change(claims)
		_, err := w.fleet.Authenticate(t.Context(), a.sign(t, claims), "POST", "/x?y=1")
		require.Equal(t, c.code, fault.CodeOf(err), "%s: %v", name, err)
		if c.code != "" {
			require.Equal(t, fault.Unauthenticated, fault.KindOf(err), name)
		}
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	claims := a.claims(w.clock.Now())
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	require.NoError(t, err)
	symmetric, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(publicOf(a.key))
	require.NoError(t, err)
	good := a.sign(t, claims)
	for name, token := range map[string]string{
		"none": none, "the public key as a password": symmetric, "cut off": good[:len(good)-4], "garbage": "a.b.c", "huge": strings.Repeat("x", 1<<20),
		"another key": (&agent{key: newKey(t), id: a.id}).sign(t, claims),
		"trailing":    good + "AA",
	} {
		_, err := w.fleet.Authenticate(t.Context(), token, "POST", "/x?y=1")
		require.Equal(t, "token-invalid", fault.CodeOf(err), name)
	}
	_, err = w.fleet.Authenticate(t.Context(), "", "POST", "/x?y=1")
	require.Equal(t, "token-missing", fault.CodeOf(err))
}

func TestTheBodyIsBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	claims := a.claims(w.clock.Now())
	claims[protocol.ClaimBody] = protocol.BodyHash([]byte("body"))
	caller, err := w.fleet.Authenticate(t.Context(), a.sign(t, claims), "POST", "/x?y=1")
	require.NoError(t, err)
	require.NoError(t, caller.CheckBody([]byte("body")))
	require.Equal(t, "token-for-another-body", fault.CodeOf(caller.CheckBody([]byte("body "))))
	require.Error(t, caller.CheckBody(nil))
}

func TestARevokedAgentIsOutAtItsNextRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	w.call(t, a)
	id, err := ids.Read[ids.Agent](a.id)
	require.NoError(t, err)
	require.NoError(t, w.fleet.Revoke(t.Context(), id))
	_, err = w.fleet.Authenticate(t.Context(), a.sign(t, a.claims(w.clock.Now())), "POST", "/x?y=1")
	require.Equal(t, "agent-revoked", fault.CodeOf(err))
}

// TestTheGoldenToken pins the token's form: an agent that somebody else wrote from protocol.go must be understood.
func TestTheGoldenToken(t *testing.T) {
	t.Parallel()
	seed := make([]byte, ed25519.SeedSize)
	key := ed25519.NewKeyFromSeed(seed)
	w := newWorld(t)
	id := "agent_01kjmqv4c0e00vcv63r6nr30hd"
	parsed, err := ids.Read[ids.Agent](id)
	require.NoError(t, err)
	node := w.Nodes(t, "h100", "h", "bare_metal", 1, 1)[0]
	w.Exec(t, "INSERT INTO agent (id, kind, site_id, node_id, public_key, created_at) VALUES ($1, 'node', $2, $3, $4, now())", parsed, w.Site, node, publicOf(key))
	golden := &agent{key: key, id: id}
	claims := jwt.MapClaims{
		"iss": id, "sub": id, "iat": start().Unix(), "exp": start().Add(time.Minute).Unix(), "jti": "golden",
		"htm": "GET", "htu": "/agent/v1/operations?wait=30s", "bh": "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU",
	}
	const want = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9." +
		"eyJiaCI6IjQ3REVRcGo4SEJTYS1fVEltVy01SkNldVFlUmttNU5NcEpXWkczaFN1RlUiLCJleHAiOjE3NzIzNjY0NjAsImh0bSI6IkdFVCIsImh0dSI6Ii9hZ2VudC92MS" +
		"9vcGVyYXRpb25zP3dhaXQ9MzBzIiwiaWF0IjoxNzcyMzY2NDAwLCJpc3MiOiJhZ2VudF8wMWtqbXF2NGMwZTAwdmN2NjNyNm5yMzBoZCIsImp0aSI6ImdvbGRlbiIsInN1YiI6ImFnZW50XzAxa2ptcXY0YzBlMDB2Y3Y2M3I2bnIzMGhkIn0." +
		"_WvWjypgXfB2xquQIT9VaCr8W-hBO9INYmvrk5ykpDE2TvxEX8LSfZlkDUkfbkjwhqR3piEI3XLngpP659AlDg"
	token := golden.sign(t, claims)
	require.Equal(t, want, token)
	caller, err := w.fleet.Authenticate(t.Context(), token, "GET", "/agent/v1/operations?wait=30s")
	require.NoError(t, err)
	require.NoError(t, caller.CheckBody(nil))
	require.Equal(t, node, caller.Node)
}
