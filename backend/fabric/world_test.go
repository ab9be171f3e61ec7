package fabric_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

// world is a fabric with its agents on a database of its own. The machines answer from memory, through the fleet's own door.
type world struct {
	*markettest.Market
	t        *testing.T
	db       *postgres.DB
	clock    *clock.Fake
	fleet    *fleet.Service
	fabric   *fabric.Service
	key      *keys.Key
	subnet   *subnet
	manager  *agent
	nodes    []*machine
	customer markettest.Customer
	itype    ids.Instance
	epoch    int64
}

type agent struct {
	id  string
	key ed25519.PrivateKey
}

// machine is a node with one port.
type machine struct {
	agent
	node   ids.Node
	port   protocol.GUID
	silent bool // it does not answer
	lies   []protocol.PKey
}

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	w := &world{Market: markettest.New(t), t: t, clock: clock.NewFake(start()), subnet: newSubnet()}
	var err error
	w.db, err = postgres.Open(ctx, w.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.db.Close()) })
	w.key, err = keys.Generate()
	require.NoError(t, err)
	store, stock, log := postgres.NewFleet(w.db), postgres.NewInventory(w.db), audit.New(postgres.NewAuditEvents(w.db), w.clock)
	w.fleet = fleet.New(fleet.Deps{
		Tx: w.db, Agents: store, Beats: store, Operations: store, Hardware: inventory.New(w.db, stock, stock, stock, w.clock),
		Outbox: postgres.NewOutbox(w.db), Audit: log, Tokens: agenttoken.New(w.clock), Clock: w.clock,
	})
	w.fabric = fabric.New(fabric.Deps{
		Tx: w.db, Leases: postgres.NewLeases(w.db), Partitions: postgres.NewIsolation(w.db), Work: w.fleet, Keys: store, Outbox: postgres.NewOutbox(w.db),
		Audit: log, Signer: w.key, Clock: w.clock,
	})
	w.customer, w.itype = w.Customer(t, "Acme"), w.InstanceType(t, "h100-sxm.8x.ndr", "h100-sxm-80gb.8", "bare_metal", 8)
	_, token, _, err := w.fleet.CreateToken(ctx, w.Site, 1_000, time.Hour)
	require.NoError(t, err)
	w.manager = &agent{}
	*w.manager = w.enroll(token, protocol.FabricAgent, "ib0")
	for i, node := range w.Nodes(t, "h100", "h100-sxm-80gb.8", "bare_metal", nodes, 4) {
		m := &machine{node: node}
		m.agent = w.enroll(token, protocol.NodeAgent, fmt.Sprintf("h100-%d", i))
		var guid string
		require.NoError(t, w.Pool.QueryRow(ctx, "SELECT guid FROM hca_port WHERE node_id = $1", node).Scan(&guid))
		require.NoError(t, m.port.UnmarshalText([]byte(guid)))
		w.subnet.add(m.port)
		w.nodes = append(w.nodes, m)
	}
	return w
}

func (w *world) enroll(token string, kind protocol.AgentKind, name string) agent {
	w.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(w.t, err)
	reply, err := w.fleet.Enroll(w.t.Context(), protocol.EnrollRequest{Token: token, Kind: kind, Name: name, PublicKey: public, BootID: "b"})
	require.NoError(w.t, err)
	return agent{id: reply.AgentID, key: private}
}

func (w *world) call(a *agent) fleet.Caller {
	w.t.Helper()
	now := w.clock.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"iss": a.id, "sub": a.id, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "jti": rand.Text(),
		protocol.ClaimMethod: "GET", protocol.ClaimPath: "/", protocol.ClaimBody: "",
	}).SignedString(a.key)
	require.NoError(w.t, err)
	caller, err := w.fleet.Authenticate(w.t.Context(), token, "GET", "/")
	require.NoError(w.t, err)
	return caller
}

func (a *agent) seal(t *testing.T, payloadType string, evidence any) protocol.Result {
	t.Helper()
	payload, err := json.Marshal(evidence)
	require.NoError(t, err)
	return protocol.Result{State: protocol.Succeeded, Evidence: payload, Signed: &protocol.Envelope{
		PayloadType: payloadType, Payload: payload,
		Signatures: []protocol.Signature{{KeyID: a.id, Sig: ed25519.Sign(a.key, protocol.PAE(payloadType, payload))}},
	}}
}

// lease books a lease that is being provisioned, with the nodes whole, handed over.
func (w *world) lease(nodes ...*machine) ids.Lease {
	w.t.Helper()
	id := w.Lease(w.t, w.customer, w.itype, start(), start().Add(time.Hour))
	w.Exec(w.t, "UPDATE lease SET state = 'provisioning', instances = $2 WHERE id = $1", id, len(nodes))
	for i, m := range nodes {
		w.allocate(id, i, m)
	}
	return id
}

func (w *world) allocate(id ids.Lease, ordinal int, m *machine) {
	w.t.Helper()
	w.epoch++
	w.Exec(w.t, `INSERT INTO allocation (id, node_id, purpose, lease_id, ordinal, slots, occupied, state, epoch, created_at)
		VALUES ($1, $2, 'lease', $3, $4, '[0,64)', tstzrange($5, $6), 'preparing', $7, now())`, ids.Make[ids.Allocation](), m.node, id, ordinal, start(), start().Add(2*time.Hour), w.epoch)
}

// turn moves a lease's allocations on.
func (w *world) turn(id ids.Lease, state string) {
	w.t.Helper()
	w.Exec(w.t, "UPDATE allocation SET state = $2, released_at = CASE WHEN $2 = 'released' THEN now() END WHERE lease_id = $1 AND released_at IS NULL", id, state)
}

func (w *world) join(id ids.Lease) {
	w.t.Helper()
	require.NoError(w.t, w.fabric.Join(w.t.Context(), id))
}

func (w *world) leave(id ids.Lease) {
	w.t.Helper()
	w.Exec(w.t, "UPDATE lease SET state = 'releasing' WHERE id = $1", id)
	w.turn(id, "cleaning")
	require.NoError(w.t, w.fabric.Leave(w.t.Context(), id))
}

func (w *world) status(id ids.Lease) fabric.Status {
	w.t.Helper()
	status, _, err := w.fabric.Status(w.t.Context(), id)
	require.NoError(w.t, err)
	return status
}

func (w *world) words(id ids.Lease) string {
	w.t.Helper()
	_, words, err := w.fabric.Status(w.t.Context(), id)
	require.NoError(w.t, err)
	return words
}

// plan asks for a sweep and returns whether one is in flight.
func (w *world) plan() bool {
	w.t.Helper()
	inFlight, _, err := w.fabric.Plan(w.t.Context(), w.Fabric)
	require.NoError(w.t, err)
	return inFlight
}

// orders are what the fabric's agent has not begun.
func (w *world) orders() []protocol.Operation {
	w.t.Helper()
	found, err := w.fleet.Poll(w.t.Context(), w.call(w.manager), 0)
	require.NoError(w.t, err)
	return found
}

// answer completes one of the fabric's operations with what change makes of the subnet's honest observation.
func (w *world) answer(op protocol.Operation, change ...func(*protocol.FabricObservation)) {
	w.t.Helper()
	id, err := ids.Read[ids.Operation](op.ID)
	require.NoError(w.t, err)
	seen := w.subnet.do(w.t, op)
	seen.FabricID, seen.ObservedAt = w.Fabric.String(), w.clock.Now()
	for _, c := range change {
		c(&seen)
	}
	require.NoError(w.t, w.fleet.Complete(w.t.Context(), w.call(w.manager), id, w.manager.seal(w.t, protocol.PayloadFabricObservation, seen)))
}

// sweep carries everything out that is pending and takes it in, and returns the order, if there was one.
func (w *world) sweep() *protocol.Operation {
	w.t.Helper()
	if !w.plan() {
		return nil
	}
	orders := w.orders()
	require.Len(w.t, orders, 1)
	w.answer(orders[0])
	require.NoError(w.t, w.fabric.Absorb(w.t.Context(), w.Fabric))
	return &orders[0]
}

// witness has a round of the lease's nodes heard, and the fabric's agent where it is asked too.
func (w *world) witness(id ids.Lease, occasion fabric.Occasion, round int) {
	w.t.Helper()
	require.NoError(w.t, w.fabric.Witness(w.t.Context(), id, occasion, round))
	for _, op := range w.orders() {
		w.answer(op)
	}
	for _, m := range w.nodes {
		found, err := w.fleet.Poll(w.t.Context(), w.call(&m.agent), 0)
		require.NoError(w.t, err)
		for _, op := range found {
			w.observe(m, op)
		}
	}
}

func (w *world) observe(m *machine, op protocol.Operation) {
	w.t.Helper()
	if m.silent {
		return
	}
	id, err := ids.Read[ids.Operation](op.ID)
	require.NoError(w.t, err)
	var spec protocol.ObservePKeysSpec
	require.NoError(w.t, json.Unmarshal(op.Spec, &spec))
	seen := protocol.PKeyObservation{NodeID: m.node.String(), Nonce: spec.Nonce, ObservedAt: w.clock.Now()}
	for _, port := range spec.PortGUIDs {
		table := w.subnet.read(port).HCA
		if m.lies != nil {
			table.Keys = m.lies
		}
		seen.Ports = append(seen.Ports, table)
	}
	require.NoError(w.t, w.fleet.Complete(w.t.Context(), w.call(&m.agent), id, m.seal(w.t, protocol.PayloadPKeyObservation, seen)))
}

func (w *world) attest(id ids.Lease, occasion fabric.Occasion) (fabric.Verdict, fabric.Statement) {
	w.t.Helper()
	attestation, verdict, err := w.fabric.Attest(w.t.Context(), id, occasion)
	require.NoError(w.t, err)
	statement, err := fabric.VerifyAttestation(w.envelope(attestation), w.published())
	require.NoError(w.t, err, "whatever the verdict, the proof holds")
	require.Equal(w.t, verdict, statement.Predicate.Verdict)
	return verdict, statement
}

func (w *world) envelope(id ids.Attestation) protocol.Envelope {
	w.t.Helper()
	var raw []byte
	var envelope protocol.Envelope
	require.NoError(w.t, w.Pool.QueryRow(w.t.Context(), "SELECT envelope FROM attestation WHERE id = $1", id).Scan(&raw))
	require.NoError(w.t, json.Unmarshal(raw, &envelope))
	return envelope
}

func (w *world) published() map[string]ed25519.PublicKey {
	kid, _ := w.key.KeyID()
	return map[string]ed25519.PublicKey{kid: w.key.Public()}
}

// partition reads a column of the lease's partition.
func (w *world) partition(id ids.Lease, column string, into any) {
	w.t.Helper()
	require.NoError(w.t, w.Pool.QueryRow(w.t.Context(), "SELECT "+column+" FROM partition WHERE lease_id = $1 ORDER BY created_at DESC LIMIT 1", id).Scan(into))
}

func (w *world) pkey(id ids.Lease) protocol.PKey {
	var key int
	w.partition(id, "pkey", &key)
	return protocol.PKey(key)
}

func (w *world) state(id ids.Lease) fabric.State {
	var state string
	w.partition(id, "state", &state)
	return fabric.State(state)
}

func (w *world) count(query string, args ...any) int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.Pool.QueryRow(w.t.Context(), query, args...).Scan(&n))
	return n
}

// subnet is a fabric in memory: both ends' tables of each port.
type subnet struct {
	mu     sync.Mutex
	links  map[protocol.GUID]*link
	paths  map[protocol.GUID]protocol.Verdict // what a query from there to a stranger finds
	orders []protocol.OperationKind
	// trusting makes the manager write only what it believes to be otherwise, and what it is to repair.
	trusting bool
	deaf     bool // repairs do not help
	posture  []protocol.PostureCheck
}

type link struct {
	hca, sw  []protocol.PKey
	dark     bool // the HCA port cannot be read
	swDark   bool
	stuck    bool // what is applied does not reach the HCA port
	swStuck  bool
	lastKeys string
}

func newSubnet() *subnet {
	return &subnet{links: map[protocol.GUID]*link{}, paths: map[protocol.GUID]protocol.Verdict{}}
}

func (s *subnet) add(port protocol.GUID) {
	s.links[port] = &link{hca: []protocol.PKey{protocol.DefaultLimited}, sw: []protocol.PKey{protocol.DefaultLimited}}
}

func (s *subnet) of(port protocol.GUID) *link { return s.links[port] }

// do carries an order out and returns what is seen then, with its nonce and epoch.
func (s *subnet) do(t *testing.T, op protocol.Operation) protocol.FabricObservation {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = append(s.orders, op.Kind)
	seen := protocol.FabricObservation{Epoch: op.Epoch, Sweeps: 1, Checks: []protocol.PathCheck{}, Posture: s.posture}
	var ports []protocol.GUID
	if op.Kind == protocol.ObserveFabric {
		var spec protocol.ObserveFabricSpec
		require.NoError(t, json.Unmarshal(op.Spec, &spec))
		seen.Nonce, ports = spec.Nonce, spec.Ports
		if len(ports) == 0 {
			ports = slices.Collect(maps.Keys(s.links))
		}
	} else {
		var spec protocol.ApplyPartitionsSpec
		require.NoError(t, json.Unmarshal(op.Spec, &spec))
		seen.Nonce, ports = spec.Nonce, slices.Concat(s.apply(spec), spec.Observe, spec.Repair)
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		seen.Ports = append(seen.Ports, s.read(port))
		if found, ask := s.paths[port]; ask {
			seen.Checks = append(seen.Checks, protocol.PathCheck{From: port, To: 0xffff, Want: protocol.False, Found: found})
		}
	}
	return seen
}

func (s *subnet) apply(spec protocol.ApplyPartitionsSpec) []protocol.GUID {
	keyOf := map[protocol.GUID]protocol.PKey{}
	for _, p := range spec.Partitions {
		for _, port := range p.Members {
			keyOf[port] = p.PKey
		}
	}
	var changed []protocol.GUID
	for port, l := range s.links {
		table := []protocol.PKey{protocol.DefaultLimited}
		if key := keyOf[port]; key != 0 {
			table = []protocol.PKey{key | protocol.FullMember, protocol.DefaultLimited}
		}
		if now := fmt.Sprint(table); now != l.lastKeys {
			l.lastKeys = now
			changed = append(changed, port)
		} else if s.trusting && (s.deaf || !slices.Contains(spec.Repair, port)) {
			continue
		}
		if !l.stuck {
			l.hca = table
		}
		if !l.swStuck {
			l.sw = table
		}
	}
	return changed
}

func (s *subnet) read(port protocol.GUID) protocol.LinkState {
	l := s.links[port]
	state := protocol.LinkState{
		GUID: port, SwitchGUID: 1, SwitchPort: 1, HCA: protocol.PortTable{GUID: port, Readable: true, Keys: l.hca, Source: "sim"},
		Switch: protocol.PortTable{GUID: 1, Readable: true, Keys: l.sw, Source: "sim"},
	}
	if l.dark {
		state.HCA = protocol.PortTable{GUID: port, Keys: []protocol.PKey{}, Source: "sim", Detail: "timeout"}
	}
	if l.swDark {
		state.Switch = protocol.PortTable{GUID: 1, Keys: []protocol.PKey{}, Source: "sim", Detail: "timeout"}
	}
	return state
}

// audit has the whole fabric read and taken in.
func (w *world) audit() fabric.Audit {
	w.t.Helper()
	began, err := w.fabric.AskAudit(w.t.Context(), w.Fabric)
	require.NoError(w.t, err)
	for range 4 { // what is pending goes first
		w.sweep()
		audits, err := w.fabric.Audits(w.t.Context(), w.Fabric, 1)
		require.NoError(w.t, err)
		if len(audits) > 0 && !audits[0].AskedAt.Before(began) {
			return audits[0]
		}
	}
	require.FailNow(w.t, "nobody has audited")
	return fabric.Audit{}
}

// drift lists what lasts, as kind and words.
func (w *world) drift() []string {
	w.t.Helper()
	open, err := postgres.NewIsolation(w.db).OpenDrift(w.t.Context(), w.Fabric)
	require.NoError(w.t, err)
	all := []string{}
	for _, d := range open {
		all = append(all, string(d.Kind)+": "+d.What)
	}
	return all
}

// alarms counts the messages to the operator about the event.
func (w *world) alarms(event string) int {
	return w.count("SELECT count(*) FROM outbox WHERE topic = 'notify' AND key = 'operator' AND payload->>'event' = $1", event)
}

// isolated reports whether the port really holds the key at both ends and nothing else.
func (l *link) isolated(key protocol.PKey) bool {
	want := fmt.Sprint([]protocol.PKey{key | protocol.FullMember, protocol.DefaultLimited})
	return fmt.Sprint(l.hca) == want && fmt.Sprint(l.sw) == want
}

// clear reports whether neither end really holds the key.
func (l *link) clear(key protocol.PKey) bool {
	return !strings.Contains(fmt.Sprint(l.hca, l.sw), (key | protocol.FullMember).String())
}
