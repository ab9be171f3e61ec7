package fleet_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

// world is a fleet on a database of its own.
type world struct {
	*markettest.Market
	db    *postgres.DB
	fleet *fleet.Service
	clock *clock.Fake
	token string // for enrolments, as many as a test likes
}

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func newWorld(t *testing.T, change ...func(*fleet.Deps)) *world {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	w := &world{Market: markettest.New(t), clock: clock.NewFake(start())}
	db, err := postgres.Open(ctx, w.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w.db = db
	store, stock := postgres.NewFleet(db), postgres.NewInventory(db)
	deps := fleet.Deps{
		Tx: db, Agents: store, Beats: store, Operations: store, Hardware: inventory.New(db, stock, stock, stock, w.clock), Outbox: postgres.NewOutbox(db),
		Audit: audit.New(postgres.NewAuditEvents(db), w.clock), Tokens: agenttoken.New(w.clock), Clock: w.clock, Recheck: time.Hour,
	}
	for _, c := range change {
		c(&deps)
	}
	w.fleet = fleet.New(deps)
	_, w.token, _, err = w.fleet.CreateToken(ctx, w.Site, 1_000_000, 365*24*time.Hour)
	require.NoError(t, err)
	return w
}

// agent is an agent's side: its key and what it was told at enrolment.
type agent struct {
	key    ed25519.PrivateKey
	id     string
	node   ids.Node
	fabric ids.Fabric
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return key
}

func publicOf(key ed25519.PrivateKey) []byte {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}

func (w *world) enroll(t *testing.T, kind protocol.AgentKind, name string) *agent {
	t.Helper()
	a := &agent{key: newKey(t)}
	reply, err := w.fleet.Enroll(t.Context(), protocol.EnrollRequest{Token: w.token, Kind: kind, Name: name, PublicKey: publicOf(a.key), BootID: "boot-1"})
	require.NoError(t, err)
	a.id = reply.AgentID
	a.node, err = ids.Read[ids.Node](reply.NodeID)
	require.NoError(t, err)
	a.fabric, err = ids.Read[ids.Fabric](reply.FabricID)
	require.NoError(t, err)
	return a
}

func (a *agent) claims(now time.Time) jwt.MapClaims {
	return jwt.MapClaims{
		"iss": a.id, "sub": a.id, "iat": now.Unix(), "exp": now.Add(protocol.MaxTokenAge).Unix(), "jti": rand.Text(),
		protocol.ClaimMethod: "POST", protocol.ClaimPath: "/x?y=1", protocol.ClaimBody: protocol.BodyHash(nil),
	}
}

func (a *agent) sign(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(a.key)
	require.NoError(t, err)
	return text
}

// call authenticates a fresh request.
func (w *world) call(t testing.TB, a *agent) fleet.Caller {
	t.Helper()
	caller, err := w.fleet.Authenticate(t.Context(), a.sign(t, a.claims(w.clock.Now())), "POST", "/x?y=1")
	require.NoError(t, err)
	return caller
}

// seal signs evidence as an agent does.
func (a *agent) seal(t testing.TB, payloadType string, evidence any) protocol.Result {
	t.Helper()
	payload, err := json.Marshal(evidence)
	require.NoError(t, err)
	return protocol.Result{State: protocol.Succeeded, Evidence: payload, Signed: &protocol.Envelope{
		PayloadType: payloadType, Payload: payload,
		Signatures: []protocol.Signature{{KeyID: a.id, Sig: ed25519.Sign(a.key, protocol.PAE(payloadType, payload))}},
	}}
}

// revoked is a success of the simplest kind.
func revoked() protocol.Result {
	return protocol.Result{State: protocol.Succeeded, Evidence: protocol.Raw(`{"sessions_ended":0,"processes_ended":0,"login_refused":true}`)}
}

// lease adds a lease that steps can belong to.
func (w *world) lease(t *testing.T) ids.Lease {
	t.Helper()
	return w.Lease(t, w.Customer(t, "Acme"), w.InstanceType(t, "t-"+strings.ToLower(rand.Text()), "h", "bare_metal", 8), start(), start().Add(time.Hour))
}

// nudges counts what waits in the outbox for the key.
func (w *world) nudges(t testing.TB, topic, key string) int {
	t.Helper()
	var n int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox WHERE topic = $1 AND key = $2", topic, key).Scan(&n))
	return n
}

func revokeOf(a *agent) fleet.Work {
	return fleet.Work{
		Node: a.node, Kind: protocol.Revoke, Epoch: 1, Slots: protocol.Slots{From: 0, To: 8}, Spec: protocol.RevokeSpec{LeaseID: "l"},
		PickUpWithin: time.Minute, DoneWithin: 2 * time.Minute,
	}
}

// together runs fn in n goroutines that begin at once, and returns their errors.
func together(n int, fn func(i int) error) []error {
	errs, gate := make([]error, n), make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-gate
			errs[i] = fn(i)
		})
	}
	close(gate)
	all.Wait()
	return errs
}
