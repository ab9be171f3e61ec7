package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

// site is an API that agents call, with a site of their own and a token for it.
type site struct {
	*world
	fleet  *fleet.Service
	id     ids.Site
	fabric ids.Fabric
	token  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{id: ids.Make[ids.Site](), fabric: ids.Make[ids.Fabric]()}
	s.world = newWorld(t, func(d *httpapi.Deps) {
		db, ok := d.Tx.(*postgres.DB)
		require.True(t, ok)
		store, stock := postgres.NewFleet(db), postgres.NewInventory(db)
		hub := postgres.NewHub(db, slog.New(slog.DiscardHandler), fleet.Channel)
		run(t, hub)
		s.fleet = fleet.New(fleet.Deps{
			Tx: db, Agents: store, Beats: store, Operations: store, Hardware: inventory.New(db, stock, stock, stock, d.Clock),
			Outbox: postgres.NewOutbox(db), Audit: audit.New(postgres.NewAuditEvents(db), d.Clock), Tokens: agenttoken.New(d.Clock), Waker: hub,
			Clock: d.Clock, Recheck: time.Hour,
		})
		d.Agent = httpapi.Agent{Fleet: s.fleet, Clock: d.Clock}
	})
	ctx, pool := context.WithoutCancel(t.Context()), s.database.Pool(t)
	_, err := pool.Exec(ctx, `INSERT INTO site (id, provider_org_id, name, region, country, created_at)
		SELECT $1, id, 'agents', 'r', 'DE', now() FROM organization WHERE kind = 'operator'`, s.id)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib0', now())`, s.fabric, s.id)
	require.NoError(t, err)
	_, s.token, _, err = s.fleet.CreateToken(ctx, s.id, 100_000, 365*24*time.Hour)
	require.NoError(t, err)
	return s
}

// run runs a hub until the test ends, from when it hears.
func run(t *testing.T, hub *postgres.Hub) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, cancel := hub.Subscribe(fleet.Channel, "")
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = hub.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	<-ready
}

// agentClient speaks the protocol as protocol.go says it, with no code of the agent's own.
type agentClient struct {
	site *site
	key  ed25519.PrivateKey
	id   string
	node string
	skew time.Duration
	// spoil may change a request before it is sent, behind the signature's back.
	spoil func(r *http.Request)
	claim func(c jwt.MapClaims)
}

func (s *site) enroll(t *testing.T, kind protocol.AgentKind, name string) *agentClient {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	c := &agentClient{site: s, key: key}
	r := c.do(t, http.MethodPost, protocol.PathEnroll, protocol.EnrollRequest{
		Token: s.token, Kind: kind, Name: name, PublicKey: public, BootID: "boot-1", AgentVersion: "test",
	})
	var answer protocol.EnrollResponse
	r.into(t, http.StatusOK, &answer)
	require.Equal(t, 10, answer.HeartbeatSeconds)
	require.NotEqual(t, answer.NodeID == "", answer.FabricID == "")
	c.id, c.node = answer.AgentID, answer.NodeID
	return c
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) into(t *testing.T, status int, v any) {
	t.Helper()
	require.Equal(t, status, r.status, string(r.body))
	require.NotEmpty(t, r.header.Get(protocol.HeaderServerTime))
	if v != nil {
		require.NoError(t, json.Unmarshal(r.body, v))
	}
}

func (r reply) problem(t *testing.T, status int, code string) {
	t.Helper()
	require.Equal(t, status, r.status, string(r.body))
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"))
	require.NotEmpty(t, r.header.Get(protocol.HeaderServerTime), "a refusal tells the time too")
	var problem struct {
		Type string `json:"type"`
	}
	require.NoError(t, json.Unmarshal(r.body, &problem))
	require.Equal(t, "/problems/"+code, problem.Type, string(r.body))
}

func (c *agentClient) do(t testing.TB, method, path string, in any) reply {
	t.Helper()
	body, ok := in.([]byte)
	if !ok && in != nil {
		var err error
		body, err = json.Marshal(in)
		require.NoError(t, err)
	}
	return c.send(t, method, path, body, "")
}

func (c *agentClient) send(t testing.TB, method, path string, body []byte, encoding string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.site.server.URL+path, bytes.NewReader(body))
	require.NoError(t, err)
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	if c.id != "" {
		request.Header.Set("Authorization", "Bearer "+c.sign(t, method, path, body))
	}
	if c.spoil != nil {
		c.spoil(request)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	read, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return reply{response.StatusCode, response.Header, read}
}

func (c *agentClient) sign(t testing.TB, method, path string, body []byte) string {
	t.Helper()
	now := c.site.clock.Now().Add(c.skew)
	claims := jwt.MapClaims{
		"iss": c.id, "sub": c.id, "iat": now.Unix(), "exp": now.Add(protocol.MaxTokenAge).Unix(), "jti": rand.Text(),
		protocol.ClaimMethod: method, protocol.ClaimPath: path, protocol.ClaimBody: protocol.BodyHash(body),
	}
	if c.claim != nil {
		c.claim(claims)
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(c.key)
	require.NoError(t, err)
	return text
}

func packed(t testing.TB, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(body)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func opPath(template, id string) string { return strings.ReplaceAll(template, "{id}", id) }

// issue has a fabric's step of one operation for each of the agents.
func (s *site) issue(t testing.TB, work ...fleet.Work) {
	t.Helper()
	for i := range work {
		work[i].PickUpWithin, work[i].DoneWithin = time.Hour, time.Hour
	}
	_, err := s.fleet.Issue(t.Context(), fleet.Step{Fabric: s.fabric, Kind: "test", Attempt: 1}, work)
	require.NoError(t, err)
}

func (c *agentClient) work(t testing.TB) fleet.Work {
	t.Helper()
	node, err := ids.Read[ids.Node](c.node)
	require.NoError(t, err)
	return fleet.Work{Node: node, Kind: protocol.Wipe, Epoch: 7, Slots: protocol.Slots{From: 0, To: 64}, Spec: protocol.WipeSpec{LeaseID: "l", Nonce: "n"}}
}

func (c *agentClient) poll(t testing.TB, wait string) []protocol.Operation {
	t.Helper()
	r := c.do(t, http.MethodGet, protocol.PathOperations+"?wait="+wait, nil)
	require.Equal(t, http.StatusOK, r.status, string(r.body))
	var answer protocol.Operations
	require.NoError(t, json.Unmarshal(r.body, &answer))
	require.NotNil(t, answer.Operations)
	return answer.Operations
}

// wiped is a signed success.
func (c *agentClient) wiped(t testing.TB) protocol.Result {
	t.Helper()
	evidence, err := json.Marshal(protocol.WipeEvidence{LeaseID: "l", NodeID: c.node, Nonce: "n", Devices: []protocol.DeviceWipe{}})
	require.NoError(t, err)
	return protocol.Result{State: protocol.Succeeded, Evidence: evidence, Signed: &protocol.Envelope{
		PayloadType: protocol.PayloadWipeEvidence, Payload: evidence,
		Signatures: []protocol.Signature{{KeyID: c.id, Sig: ed25519.Sign(c.key, protocol.PAE(protocol.PayloadWipeEvidence, evidence))}},
	}}
}

func TestAnAgentsWholeRoundTrip(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.enroll(t, protocol.NodeAgent, "gpu-01")
	report, err := json.Marshal(protocol.Inventory{BootID: "boot-1", Node: &protocol.NodeInventory{Hostname: "gpu-01", Serial: "S", CPUCores: 64}})
	require.NoError(t, err)
	var taken protocol.InventoryReply
	c.send(t, http.MethodPut, protocol.PathInventory, packed(t, report), "gzip").into(t, http.StatusOK, &taken)
	require.Equal(t, "discovered", taken.State)

	beat := protocol.Heartbeat{BootID: "boot-1", Sequence: 1, ObservedAt: s.clock.Now(), Conditions: []protocol.Condition{}}
	var answer protocol.HeartbeatReply
	c.do(t, http.MethodPost, protocol.PathHeartbeat, beat).into(t, http.StatusOK, &answer)
	require.Equal(t, s.clock.Now(), answer.ServerTime)
	require.Zero(t, answer.OperationsPending)

	require.Empty(t, c.poll(t, "0s"))
	work, got := c.work(t), make(chan []protocol.Operation, 1)
	go func() { got <- c.poll(t, "30s") }()
	s.issue(t, work)
	operations := <-got
	require.Len(t, operations, 1)
	op := operations[0]
	require.Equal(t, protocol.Wipe, op.Kind)
	require.EqualValues(t, 7, op.Epoch)
	require.JSONEq(t, `{"lease_id":"l","nonce":"n"}`, string(op.Spec))

	c.do(t, http.MethodPost, opPath(protocol.PathProgress, op.ID), protocol.Progress{Percent: 0, Phase: "picked up"}).into(t, http.StatusNoContent, nil)
	require.Empty(t, c.poll(t, "0s"), "what was begun is not handed out again")
	result := c.wiped(t)
	for range 3 {
		c.do(t, http.MethodPost, opPath(protocol.PathResult, op.ID), result).into(t, http.StatusNoContent, nil)
	}
	status, err := s.fleet.Step(t.Context(), fleet.Step{Fabric: s.fabric, Kind: "test", Attempt: 1})
	require.NoError(t, err)
	require.Zero(t, status.Remaining)
	require.Equal(t, result.Signed, status.Operations[0].Signed)
}

func TestEveryBadRequestOfAnAgentGetsAClearAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, other := s.enroll(t, protocol.NodeAgent, "a"), s.enroll(t, protocol.NodeAgent, "b")
	s.issue(t, c.work(t))
	op := c.poll(t, "0s")[0].ID
	huge := bytes.Repeat([]byte(" "), 1<<20+1)
	beat := func(more string) []byte { return []byte(`{"boot_id":"b","sequence":1` + more + `}`) }
	post := func(path string, body []byte) func(*agentClient) reply {
		return func(c *agentClient) reply { return c.do(t, http.MethodPost, path, body) }
	}
	gz := func(path string, body []byte) func(*agentClient) reply {
		return func(c *agentClient) reply { return c.send(t, http.MethodPost, path, body, "gzip") }
	}
	good := packed(t, beat(""))
	for name, r := range map[string]struct {
		ask    func(*agentClient) reply
		change func(*agentClient)
		status int
		code   string
	}{
		"good":                 {post(protocol.PathHeartbeat, beat("")), nil, 200, ""},
		"good and packed":      {gz(protocol.PathHeartbeat, good), nil, 200, ""},
		"a member of tomorrow": {post(protocol.PathHeartbeat, beat(`,"mood":"fine"`)), nil, 200, ""},
		"no token":             {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.spoil = func(r *http.Request) { r.Header.Del("Authorization") } }, 401, "token-missing"},
		"a wrong key":          {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.key = other.key }, 401, "token-invalid"},
		"another's name":       {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.id = other.id }, 401, "token-invalid"},
		"a stranger":           {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.id = ids.Make[ids.Agent]().String() }, 401, "agent-unknown"},
		"a clock behind":       {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.skew = -time.Hour }, 401, "token-out-of-time"},
		"a clock ahead":        {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.skew = time.Hour }, 401, "token-out-of-time"},
		"a long life": {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) {
			c.claim = func(m jwt.MapClaims) { m["exp"] = s.clock.Now().Add(time.Hour).Unix() }
		}, 401, "token-too-long"},
		"for another path": {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.claim = func(m jwt.MapClaims) { m["htu"] = "/agent/v1/inventory" } }, 401, "token-for-another-request"},
		"another query": {func(c *agentClient) reply {
			return c.do(t, http.MethodGet, protocol.PathOperations+"?wait=0s", nil)
		}, func(c *agentClient) { c.claim = func(m jwt.MapClaims) { m["htu"] = protocol.PathOperations } }, 401, "token-for-another-request"},
		"a body put in its place": {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) {
			c.spoil = func(r *http.Request) {
				r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", int(r.ContentLength))))
			}
		}, 401, "token-for-another-body"},
		"too large":               {post(protocol.PathHeartbeat, huge), nil, 413, "too-large"},
		"too large, of no length": {post(protocol.PathHeartbeat, huge), func(c *agentClient) { c.spoil = func(r *http.Request) { r.ContentLength = -1 } }, 413, "too-large"},
		"a bomb":                  {gz(protocol.PathHeartbeat, packed(t, bytes.Repeat([]byte(" "), 64<<20))), nil, 413, "too-large"},
		"no gzip":                 {gz(protocol.PathHeartbeat, beat("")), nil, 400, "malformed-request"},
		"gzip cut off":            {gz(protocol.PathHeartbeat, good[:len(good)-6]), nil, 400, "malformed-request"},
		"an encoding of tomorrow": {func(c *agentClient) reply {
			return c.send(t, http.MethodPost, protocol.PathHeartbeat, good, "zstd")
		}, nil, 415, "unsupported-media-type"},
		"another type":             {post(protocol.PathHeartbeat, beat("")), func(c *agentClient) { c.spoil = func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") } }, 415, "unsupported-media-type"},
		"nothing":                  {post(protocol.PathHeartbeat, nil), nil, 415, "unsupported-media-type"},
		"garbage":                  {post(protocol.PathHeartbeat, []byte("\x00\x01garbage")), nil, 400, "malformed-request"},
		"JSON cut off":             {post(protocol.PathHeartbeat, beat("")[:10]), nil, 400, "malformed-request"},
		"more behind it":           {post(protocol.PathHeartbeat, append(beat(""), '{')), nil, 400, "malformed-request"},
		"text for a number":        {post(protocol.PathHeartbeat, []byte(`{"boot_id":"b","sequence":"one"}`)), nil, 422, "malformed-body"},
		"a number too large":       {post(protocol.PathHeartbeat, []byte(`{"boot_id":"b","sequence":1e99}`)), nil, 422, "malformed-body"},
		"NUL in text":              {post(protocol.PathHeartbeat, []byte(`{"boot_id":"b\u0000","sequence":1}`)), nil, 400, "malformed-request"},
		"what only looks like NUL": {post(protocol.PathHeartbeat, []byte(`{"boot_id":"b\\u0000","sequence":1}`)), nil, 200, ""},
		"no UTF-8":                 {post(protocol.PathHeartbeat, []byte("{\"boot_id\":\"\xff\",\"sequence\":1}")), nil, 400, "malformed-request"},
		"no sense":                 {post(protocol.PathHeartbeat, []byte(`{}`)), nil, 422, "heartbeat"},
		"nesting":                  {post(protocol.PathHeartbeat, []byte(`{"boot_id":"b","x":`+strings.Repeat("[", 100_000))), nil, 400, "malformed-request"},
		"another's operation":      {post(opPath(protocol.PathProgress, op), []byte(`{}`)), func(c *agentClient) { *c = *other }, 404, "operation-not-found"},
		"another's result":         {post(opPath(protocol.PathResult, op), []byte(`{"state":"failed"}`)), func(c *agentClient) { *c = *other }, 404, "operation-not-found"},
		"an operation of no form":  {post(opPath(protocol.PathProgress, "42"), []byte(`{}`)), nil, 404, "operation-not-found"},
		"an unknown operation":     {post(opPath(protocol.PathProgress, ids.Make[ids.Operation]().String()), []byte(`{}`)), nil, 404, "operation-not-found"},
		"a percentage of 101":      {post(opPath(protocol.PathProgress, op), []byte(`{"percent":101}`)), nil, 422, "progress"},
		"a result of no state":     {post(opPath(protocol.PathResult, op), []byte(`{"state":"done"}`)), nil, 422, "result"},
		"a large result":           {post(opPath(protocol.PathResult, op), huge), nil, 413, "too-large"},
		"a wait of no form": {func(c *agentClient) reply {
			return c.do(t, http.MethodGet, protocol.PathOperations+"?wait=soon", nil)
		}, nil, 422, "wait"},
		"an inventory of the other kind": {func(c *agentClient) reply {
			return c.do(t, http.MethodPut, protocol.PathInventory, protocol.Inventory{Fabric: &protocol.FabricInventory{}})
		}, nil, 422, "inventory"},
		"an enrolment of no form":    {post(protocol.PathEnroll, []byte(`{}`)), nil, 422, "enrollment"},
		"an enrolment by guesswork":  {post(protocol.PathEnroll, []byte(`{"token":"x","kind":"node","name":"n","public_key":"`+strings.Repeat("A", 43)+`="}`)), nil, 403, "enrollment-token"},
		"an enrolment that is large": {post(protocol.PathEnroll, huge), nil, 413, "too-large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine := *c
			if r.change != nil {
				r.change(&mine)
			}
			got := r.ask(&mine)
			if r.code == "" {
				got.into(t, r.status, nil)
				return
			}
			got.problem(t, r.status, r.code)
		})
	}
}

func TestNothingIsReadOfABodyWhoseTokenIsNotGood(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.enroll(t, protocol.NodeAgent, "a")
	c.skew = time.Hour
	reader := &counting{left: 8 << 20}
	c.spoil = func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(reader), 8<<20 }
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.server.URL+protocol.PathInventory, nil)
	require.NoError(t, err)
	request.Header.Set("Expect", "100-continue") // the client waits for leave to send
	request.Header.Set("Authorization", "Bearer "+c.sign(t, http.MethodPut, protocol.PathInventory, nil))
	c.spoil(request)
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	require.EqualValues(t, 8<<20, reader.left, "nobody asked for it")
}

type counting struct{ left int64 }

func (c *counting) Read(p []byte) (int, error) {
	n := int64(min(len(p), int(c.left)))
	if c.left -= n; n == 0 {
		return 0, io.EOF
	}
	return int(n), nil
}

func TestAReplayedResultTokenIsRefusedAndAFreshOneIsNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.enroll(t, protocol.NodeAgent, "a")
	s.issue(t, c.work(t))
	path := opPath(protocol.PathResult, c.poll(t, "0s")[0].ID)
	c.claim = func(m jwt.MapClaims) { m["jti"] = "once" }
	result := c.wiped(t)
	c.do(t, http.MethodPost, path, result).into(t, http.StatusNoContent, nil)
	c.do(t, http.MethodPost, path, result).problem(t, http.StatusUnauthorized, "token-replayed")
	c.claim = nil
	c.do(t, http.MethodPost, path, result).into(t, http.StatusNoContent, nil)
}

func TestAWrongClockIsRightedByTheServersTime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.enroll(t, protocol.NodeAgent, "a")
	c.skew = -48 * time.Hour
	refused := c.do(t, http.MethodPost, protocol.PathHeartbeat, protocol.Heartbeat{BootID: "b"})
	refused.problem(t, http.StatusUnauthorized, "token-out-of-time")
	told, err := time.Parse(time.RFC3339Nano, refused.header.Get(protocol.HeaderServerTime))
	require.NoError(t, err)
	c.skew += told.Sub(s.clock.Now().Add(c.skew))
	c.do(t, http.MethodPost, protocol.PathHeartbeat, protocol.Heartbeat{BootID: "b"}).into(t, http.StatusOK, nil)
}

func TestAFabricsResultMayBeLarge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.enroll(t, protocol.FabricAgent, "ib0")
	s.issue(t, fleet.Work{Fabric: s.fabric, Kind: protocol.ObserveFabric, Epoch: 1, Spec: protocol.ObserveFabricSpec{Nonce: "n"}})
	seen := protocol.FabricObservation{FabricID: s.fabric.String(), Nonce: "n", Epoch: 1}
	for port := range 5_000 {
		table := protocol.PortTable{GUID: protocol.GUID(port), Readable: true, Keys: []protocol.PKey{0x8001, 0x7fff}, Source: "smp"}
		seen.Ports = append(seen.Ports, protocol.LinkState{GUID: protocol.GUID(port), HCA: table, Switch: table})
	}
	evidence, err := json.Marshal(seen)
	require.NoError(t, err)
	result := protocol.Result{State: protocol.Succeeded, Evidence: evidence, Signed: &protocol.Envelope{
		PayloadType: protocol.PayloadFabricObservation, Payload: evidence,
		Signatures: []protocol.Signature{{KeyID: c.id, Sig: ed25519.Sign(c.key, protocol.PAE(protocol.PayloadFabricObservation, evidence))}},
	}}
	body, err := json.Marshal(result)
	require.NoError(t, err)
	require.Greater(t, len(body), 2<<20)
	c.do(t, http.MethodPost, opPath(protocol.PathResult, c.poll(t, "0s")[0].ID), body).into(t, http.StatusNoContent, nil)
}

// TestAThousandHeartbeatsAreTaken measures one client in a loop and thirty-two at once; the figures go to the log.
func TestAThousandHeartbeatsAreTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	clients := make([]*agentClient, 32)
	for i := range clients {
		clients[i] = s.enroll(t, protocol.NodeAgent, fmt.Sprintf("n%d", i))
	}
	beat := func(c *agentClient, sequence int) {
		body := protocol.Heartbeat{BootID: "b", Sequence: int64(sequence), ObservedAt: s.clock.Now(), Conditions: []protocol.Condition{}}
		require.Equal(t, http.StatusOK, c.do(t, http.MethodPost, protocol.PathHeartbeat, body).status)
	}
	const beats = 1_000
	began := time.Now()
	for i := range beats {
		beat(clients[0], i+1)
	}
	alone := time.Since(began)
	began = time.Now()
	done := make(chan struct{}, len(clients))
	for _, c := range clients {
		go func() {
			for i := range beats / len(clients) {
				beat(c, beats+i+1)
			}
			done <- struct{}{}
		}()
	}
	for range clients {
		<-done
	}
	together := time.Since(began)
	t.Logf("%d heartbeats: one after the other %s (%.0f/s), 32 at once %s (%.0f/s)", beats, alone, beats/alone.Seconds(), together, beats/together.Seconds())
}
