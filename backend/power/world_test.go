package power_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/netboot"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/redfish"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/power"
	"github.com/leasehold/leasehold/tools/virtualsite/bmc"
)

// world is the control plane with one machine behind a simulated BMC.
type world struct {
	*markettest.Market
	db      *postgres.DB
	fleet   *fleet.Service
	rows    *postgres.Power
	power   *power.Service
	deps    power.Deps
	netboot http.Handler
	bmc     *bmc.Controller
	box     *box
	node    ids.Node
}

const mac = "52:54:00:00:00:01"

// quick is the pace of a BMC in this process.
func quick() power.Pace {
	return power.Pace{ReadEvery: 2 * time.Millisecond, AgainAfter: 20 * time.Millisecond, PoliteFor: 100 * time.Millisecond, LookEvery: 10 * time.Millisecond}
}

// dialer is redfish.Dialer with short pauses.
type dialer struct{}

func (dialer) Dial(ctx context.Context, a power.Address, password string) (power.Controller, error) {
	return redfish.Open(ctx, redfish.Options{URL: a.URL, User: a.User, Password: password, Pin: a.Pin, Pause: time.Millisecond})
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	w := &world{Market: markettest.New(t)}
	var err error
	w.db, err = postgres.Open(ctx, w.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.db.Close()) })
	at := clock.System{}
	store, stock := postgres.NewFleet(w.db), postgres.NewInventory(w.db)
	nodes := inventory.New(w.db, stock, stock, stock, at)
	log := audit.New(postgres.NewAuditEvents(w.db), at)
	w.fleet = fleet.New(fleet.Deps{
		Tx: w.db, Agents: store, Beats: store, Operations: store, Hardware: nodes, Outbox: postgres.NewOutbox(w.db), Audit: log,
		Tokens: agenttoken.New(at), Clock: at, Recheck: time.Hour,
	})
	vault, err := keys.NewVault(make([]byte, 32))
	require.NoError(t, err)
	w.rows = postgres.NewPower(w.db)
	w.deps = power.Deps{
		Tx: w.db, Machines: w.rows, Work: w.fleet.Control(), Agents: w.fleet.Control(), Nodes: nodes, Dialer: dialer{}, Vault: vault, Audit: log, Clock: at,
		Pace: quick(), Worker: "w1", NodesURL: "http://control.test",
	}
	w.power = power.New(w.deps)
	w.fleet.UseBoots(w.power)
	w.netboot = (&netboot.Server{Machines: w.power, Log: slog.New(slog.DiscardHandler)}).Handler()
	w.rack(t)
	return w
}

// rack puts a machine with a BMC beside the world, and registers it.
func (w *world) rack(t *testing.T) {
	t.Helper()
	w.box = &box{boots: func(network bool) {}}
	var err error
	w.bmc, err = bmc.New(bmc.Config{Name: "metal-1", UUID: "u", Serial: "s", MAC: mac, User: "operator", Password: "secret", Host: w.box, Pause: time.Millisecond})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.bmc.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	pin := w.bmc.Pin()
	var fresh bool
	w.node, fresh, err = w.power.Register(t.Context(), power.Registration{
		Site: w.Site, Name: "metal-1", URL: "https://" + listener.Addr().String(), User: "operator", Password: "secret", Pin: pin[:], MACs: []string{strings.ToUpper(mac)},
	})
	require.NoError(t, err)
	require.True(t, fresh)
}

// run works until the test ends, or the function that it returns is called.
func (w *world) run(t *testing.T, worker string) func() {
	t.Helper()
	deps := w.deps
	deps.Worker = worker
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { _ = power.New(deps).Run(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// box is a machine that has power and a system.
type box struct {
	mu    sync.Mutex
	on    bool
	count int
	boots func(network bool) // what its firmware and system do
}

func (b *box) On() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on
}

func (b *box) TurnOn(_ context.Context, network bool, _ func(bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on {
		return nil
	}
	b.on, b.count = true, b.count+1
	go b.boots(network)
	return nil
}

func (b *box) TurnOff(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = false
	return nil
}

func (b *box) PressPower(context.Context) error { return nil }

func (b *box) does(boots func(network bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boots = boots
}

func (b *box) booted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// take receives, or fails the test.
func take[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return v
}

// script asks what the machine with that address is to boot, and returns the token in the answer, "" for none.
func (w *world) script(t *testing.T, mac string) (token, script string) {
	t.Helper()
	answer := httptest.NewRecorder()
	w.netboot.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/netboot/v1/machines/"+mac+"/boot.ipxe", nil))
	script = answer.Body.String()
	if found := regexp.MustCompile(`leasehold\.token=(\S+)`).FindStringSubmatch(script); found != nil {
		return found[1], script
	}
	return "", script
}

// phone calls home as cloud-init does, and returns the status.
func (w *world) phone(t *testing.T, address string) int {
	t.Helper()
	form := url.Values{"hostname": {"metal-1"}, "pub_key_ed25519": {hostKey}, "pub_key_rsa": {"nonsense"}}
	request := httptest.NewRequest(http.MethodPost, strings.TrimPrefix(address, "http://control.test"), strings.NewReader(form.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer := httptest.NewRecorder()
	w.netboot.ServeHTTP(answer, request)
	return answer.Code
}

const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFDSvRZWFCUWbNMBkE3Tq5x2rrhTinOd2PHs5Pyv5Dei"

// newKey is an agent's.
func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return key
}

func (w *world) enroll(t *testing.T, token string, key ed25519.PrivateKey) (protocol.EnrollResponse, error) {
	t.Helper()
	public, _ := key.Public().(ed25519.PublicKey)
	return w.fleet.Enroll(t.Context(), protocol.EnrollRequest{Token: token, Kind: protocol.NodeAgent, Name: "metal-1", PublicKey: public, BootID: "b"})
}

func (w *world) stage(t *testing.T) power.Stage {
	t.Helper()
	m, err := w.rows.Machine(t.Context(), w.node)
	require.NoError(t, err)
	return m.Stage
}

func (w *world) ask(t *testing.T, goal power.Goal, allocation ids.Allocation, epoch int64, within time.Duration) ids.Operation {
	t.Helper()
	var id ids.Operation
	require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error {
		var err error
		id, err = w.deps.Work.Ask(ctx, w.node, allocation, epoch, power.Order{Goal: goal}, within)
		return err
	}))
	return id
}

// await waits until an operation is over, and returns why it failed.
func (w *world) await(t *testing.T, id ids.Operation) *protocol.Fault {
	t.Helper()
	var failure *protocol.Fault
	require.Eventually(t, func() bool {
		over := false
		require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error {
			var err error
			over, failure, err = w.deps.Work.Outcome(ctx, id)
			return err
		}))
		return over
	}, 30*time.Second, 20*time.Millisecond)
	return failure
}

// first is the operation that registering asked for.
func (w *world) first(t *testing.T) ids.Operation {
	t.Helper()
	var id ids.Operation
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT id FROM operation WHERE node_id = $1 ORDER BY created_at LIMIT 1", w.node).Scan(&id))
	return id
}
