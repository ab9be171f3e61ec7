package uplink_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/uplink"
	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// machine is a source whose serial can be changed.
type machine struct {
	mu     sync.Mutex
	serial string
	fails  error
}

func (m *machine) Inventory(context.Context) (protocol.Inventory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return protocol.Inventory{Node: &protocol.NodeInventory{Hostname: "n1", Serial: m.serial}}, m.fails
}

func (m *machine) Health(context.Context) ([]protocol.Condition, []protocol.Sample, error) {
	return nil, []protocol.Sample{{Device: "GPU-1", Values: map[string]float64{"gpu_power_watts": 70}}}, nil
}

func (m *machine) set(serial string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serial = serial
}

type handler func(ctx context.Context, op protocol.Operation, step func(int, string)) (operation.Outcome, error)

func (h handler) Handle(ctx context.Context, op protocol.Operation, step func(int, string)) (operation.Outcome, error) {
	return h(ctx, op, step)
}

// site is a server with agents that are run against it.
type site struct {
	*uplinktest.Server
	dir     string
	token   string
	machine *machine
	handled atomic.Int64
	seen    chan struct{} // if set, operations wait for it
}

func newSite(t *testing.T) *site {
	t.Helper()
	return &site{Server: uplinktest.New(t), dir: t.TempDir(), token: uplinktest.Token, machine: &machine{serial: "S1"}}
}

// start runs the agent n1 and returns a function that stops it and returns what Run returned.
func (s *site) start(t *testing.T) func() error {
	t.Helper()
	cancel, done := s.run(t)
	var once sync.Once
	var result error
	stop := func() error {
		once.Do(func() {
			cancel()
			result = <-done
		})
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func (s *site) run(t *testing.T) (context.CancelFunc, <-chan error) {
	t.Helper()
	id, err := identity.Open(s.dir)
	require.NoError(t, err)
	client, err := uplink.NewClient(s.URL, &http.Client{}, id, time.Now, false)
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	retry := backoff.Policy{Min: time.Millisecond, Max: 20 * time.Millisecond}
	wipe := handler(func(_ context.Context, _ protocol.Operation, step func(int, string)) (operation.Outcome, error) {
		s.handled.Add(1)
		if s.seen != nil {
			<-s.seen
		}
		step(50, "half way")
		return operation.Outcome{Evidence: protocol.WipeEvidence{Devices: []protocol.DeviceWipe{}}, PayloadType: protocol.PayloadWipeEvidence}, nil
	})
	runner, err := operation.Open(operation.Config{
		Dir: s.dir, Signer: id, Reporter: client, Now: client.Now, Log: log, Retry: retry,
		Handlers: map[protocol.OperationKind]operation.Handler{protocol.Wipe: wipe},
	})
	require.NoError(t, err)
	var sequence atomic.Int64
	agent := uplink.New(uplink.Config{
		Client: client, Identity: id, Runner: runner, Source: s.machine, BootID: "boot-1", Every: 10 * time.Millisecond, Retry: retry, Log: log,
		Sequence: func() int64 { return sequence.Add(1) },
		Enroll:   protocol.EnrollRequest{Token: s.token, Kind: protocol.NodeAgent, Name: "n1", Serial: "S1", BootID: "boot-1"},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	return cancel, done
}

func wipe(id string) protocol.Operation {
	return protocol.Operation{ID: id, Kind: protocol.Wipe, Epoch: 1, Slots: protocol.Slots{From: 0, To: 8}, Spec: protocol.Raw(`{}`)}
}

func anyBeat(protocol.Heartbeat) bool { return true }

func TestAnAgentEnrollsReportsAndDoesWhatItIsTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.seen = make(chan struct{})
	stop := s.start(t)
	require.Equal(t, "S1", s.AwaitInventory(t, "n1").Node.Serial)
	beat := s.AwaitHeartbeat(t, "n1", func(b protocol.Heartbeat) bool { return len(b.Samples) > 0 })
	require.Equal(t, "boot-1", beat.BootID)

	s.Queue(t, "n1", wipe("op1"))
	require.Eventually(t, func() bool { return len(s.Progress("op1")) > 0 }, 10*time.Second, time.Millisecond)
	s.AwaitHeartbeat(t, "n1", func(b protocol.Heartbeat) bool { return len(b.Running) == 1 })
	close(s.seen)
	result := s.AwaitResult(t, "op1")
	require.Equal(t, protocol.Succeeded, result.State)
	s.Verify(t, "n1", result)
	require.Zero(t, s.Progress("op1")[0].Percent)
	require.NoError(t, stop())
	require.Empty(t, s.Refusals())
}

func TestSequencesGrow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	s.AwaitHeartbeat(t, "n1", func(b protocol.Heartbeat) bool { return b.Sequence >= 3 })
	beats := s.Agent(t, "n1").Heartbeats
	for n := 1; n < len(beats); n++ {
		require.Greater(t, beats[n].Sequence, beats[n-1].Sequence)
	}
}

func TestARestartUsesItsIdentityAgainAndNeedsNoToken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.start(t)
	first := s.Agent(t, "n1").ID
	s.AwaitInventory(t, "n1")
	require.NoError(t, stop())
	s.token = ""
	s.start(t)
	require.Equal(t, protocol.Succeeded, s.Do(t, "n1", wipe("op1")).State)
	require.Equal(t, first, s.Agent(t, "n1").ID)
}

func TestARefusedOrMissingTokenIsAnError(t *testing.T) {
	t.Parallel()
	for token, message := range map[string]string{"wrong": "403", "": "no token"} {
		s := newSite(t)
		s.token = token
		_, ended := s.run(t)
		require.ErrorContains(t, <-ended, message)
	}
}

func TestAWrongClockDoesNotLockAnAgentOut(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-48 * time.Hour, 3 * time.Hour} {
		s := newSite(t)
		s.Skew(skew)
		s.start(t)
		require.Equal(t, protocol.Succeeded, s.Do(t, "n1", wipe("op1")).State)
		s.Skew(-skew) // and when it goes wrong later
		require.Equal(t, protocol.Succeeded, s.Do(t, "n1", wipe("op2")).State)
		now := s.Now()
		s.AwaitHeartbeat(t, "n1", func(b protocol.Heartbeat) bool { return b.ObservedAt.Sub(now).Abs() < time.Minute })
	}
}

func TestErrorsCutsAndDelaysAreOutlived(t *testing.T) {
	t.Parallel()
	faults := map[string]uplinktest.Fault{
		"enrolment answered late":  {Path: protocol.PathEnroll, Times: 1, Cut: true, Late: true},
		"enrolment overloaded":     {Path: protocol.PathEnroll, Times: 3, Status: http.StatusServiceUnavailable},
		"inventory cut":            {Path: protocol.PathInventory, Times: 2, Cut: true},
		"heartbeats refused":       {Path: protocol.PathHeartbeat, Times: 3, Status: http.StatusInternalServerError},
		"unauthorized for a while": {Path: "/agent/v1/op", Times: 5, Status: http.StatusUnauthorized},
		"everything slow":          {Times: 8, Delay: 30 * time.Millisecond},
		"operations cut":           {Path: "/agent/v1/operations", Times: 5, Cut: true},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Inject(fault)
			s.start(t)
			s.AwaitHeartbeat(t, "n1", anyBeat)
			require.Equal(t, protocol.Succeeded, s.Do(t, "n1", wipe("op1")).State)
			require.EqualValues(t, 1, s.handled.Load())
		})
	}
}

func TestAResultWhoseAcknowledgementWasLostIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Inject(uplinktest.Fault{Path: "/agent/v1/operations/op1/result", Times: 1, Cut: true, Late: true})
	s.start(t)
	s.Do(t, "n1", wipe("op1"))
	require.Eventually(t, func() bool { return s.Results("op1") == 2 }, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 1, s.handled.Load())
}

func TestAChangedInventoryIsReportedAndOneThatIsWantedToo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	s.AwaitInventory(t, "n1")
	s.machine.set("S2")
	require.Eventually(t, func() bool { return s.AwaitInventory(t, "n1").Node.Serial == "S2" }, 10*time.Second, time.Millisecond)
	before := len(s.Agent(t, "n1").Inventories)
	s.WantInventory()
	require.Eventually(t, func() bool { return len(s.Agent(t, "n1").Inventories) == before+1 }, 10*time.Second, time.Millisecond)
}

func TestPlainHTTPIsForLoopbackOnly(t *testing.T) {
	t.Parallel()
	id, err := identity.Open(t.TempDir())
	require.NoError(t, err)
	for server, ok := range map[string]bool{
		"http://127.0.0.1:8080": true, "http://localhost:1": true, "http://[::1]:1": true, "https://api.example.com": true,
		"http://api.example.com": false, "http://127.evil.example.com": false, "ftp://127.0.0.1": false, "api.example.com": false, "": false,
	} {
		_, err := uplink.NewClient(server, http.DefaultClient, id, time.Now, false)
		require.Equal(t, ok, err == nil, server)
	}
	_, err = uplink.NewClient("http://api.example.com", http.DefaultClient, id, time.Now, true)
	require.NoError(t, err)
}
