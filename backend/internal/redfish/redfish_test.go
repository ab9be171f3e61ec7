package redfish_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/redfish"
	"github.com/leasehold/leasehold/backend/power"
	"github.com/leasehold/leasehold/tools/virtualsite/bmc"
)

var _ power.Controller = (*redfish.Client)(nil)

// box is a machine without a machine: it has only power.
type box struct {
	mu      sync.Mutex
	on      bool
	network bool // its last boot was from there
	boots   int
	deaf    bool // its system does not hear the power button
}

func (b *box) On() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on
}

func (b *box) TurnOn(_ context.Context, network bool, _ func(bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.on {
		b.on, b.network, b.boots = true, network, b.boots+1
	}
	return nil
}

func (b *box) TurnOff(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = false
	return nil
}

func (b *box) PressPower(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = b.on && b.deaf
	return nil
}

const (
	user     = "operator"
	password = "correct horse"
)

// rack is a BMC under test with the machine behind it.
type rack struct {
	*box
	bmc *bmc.Controller
	url string
}

func newRack(t *testing.T, oddities ...bmc.Oddity) rack {
	t.Helper()
	r := rack{box: &box{}}
	var err error
	r.bmc, err = bmc.New(bmc.Config{
		Name: "node-1", UUID: "7f1c9c52-0000-4000-8000-000000000001", Serial: "SN1", MAC: "52:54:00:00:00:01", User: user, Password: password, Host: r.box,
		Pause: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	r.bmc.Behave(oddities...)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.url = "https://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.bmc.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

func (r rack) options() redfish.Options {
	pin := r.bmc.Pin()
	return redfish.Options{URL: r.url, User: user, Password: password, Pin: pin[:], Pause: time.Millisecond, Timeout: 5 * time.Second}
}

func (r rack) open(t *testing.T) *redfish.Client {
	t.Helper()
	c, err := redfish.Open(t.Context(), r.options())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func pace() power.Pace {
	return power.Pace{ReadEvery: time.Millisecond, AgainAfter: 5 * time.Millisecond, PoliteFor: 50 * time.Millisecond}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestAMachineIsTurnedOnBootedAndTurnedOffOnOddBMCsToo(t *testing.T) {
	t.Parallel()
	for _, odd := range [][]bmc.Oddity{
		{},
		{bmc.NoResetTypes},
		{bmc.ResetTypesInfo},
		{bmc.EmptyBodies},
		{bmc.Tasks},
		{bmc.Slow},
		{bmc.WantsEtag},
		{bmc.NoEtag},
		{bmc.WantsEtag, bmc.NoEtag},
		{bmc.NoSessions},
		{bmc.LosesSessions},
		{bmc.Busy},
		{bmc.Tasks, bmc.EmptyBodies, bmc.NoResetTypes, bmc.Busy, bmc.LosesSessions},
	} {
		t.Run(fmt.Sprint(odd), func(t *testing.T) {
			t.Parallel()
			r := newRack(t, odd...)
			c := r.open(t)
			require.NoError(t, c.SetBoot(t.Context(), power.Boot{Source: power.Network, Once: true}))
			require.NoError(t, power.Reach(within(t, 20*time.Second), c, power.On, power.TurnOn, pace()))
			require.True(t, r.network, "the override was not used")
			require.NoError(t, power.Reach(within(t, 20*time.Second), c, power.Off, power.ForceOff, pace()))
			require.False(t, r.On())
			require.NoError(t, power.Reach(within(t, 20*time.Second), c, power.On, power.TurnOn, pace()))
			require.False(t, r.network, "an override for one boot was used for two")
			require.NoError(t, c.Reset(t.Context(), power.Restart))
			require.Equal(t, 3, r.boots)
			events, err := c.Events(t.Context(), 3)
			require.NoError(t, err)
			require.Len(t, events, 3)
		})
	}
}

func TestABMCThatLiesAboutPowerIsFoundOutByReadingBack(t *testing.T) {
	t.Parallel()
	for _, odd := range []bmc.Oddity{bmc.Lies, bmc.RefusesOff, bmc.FailingTasks} {
		t.Run(string(odd), func(t *testing.T) {
			t.Parallel()
			r := newRack(t)
			c := r.open(t)
			require.NoError(t, power.Reach(within(t, 10*time.Second), c, power.On, power.TurnOn, pace()))
			r.bmc.Behave(odd)
			err := power.Reach(within(t, 150*time.Millisecond), c, power.Off, power.ForceOff, pace())
			require.Equal(t, "power-not-obeyed", fault.CodeOf(err), "%v", err)
			require.True(t, r.On())
			// Once it obeys again, so does the same command.
			r.bmc.Behave()
			require.NoError(t, power.Reach(within(t, 10*time.Second), c, power.Off, power.ForceOff, pace()))
			require.False(t, r.On())
		})
	}
}

func TestASystemThatDoesNotHearTheButtonLosesItsPower(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		r := newRack(t)
		r.deaf = deaf
		c := r.open(t)
		require.NoError(t, power.Reach(within(t, 10*time.Second), c, power.On, power.TurnOn, pace()))
		require.NoError(t, power.TurnOffPolitely(within(t, 10*time.Second), c, pace()))
		require.False(t, r.On())
	}
}

func TestABootOverrideThatIsTakenAndForgottenIsAnError(t *testing.T) {
	t.Parallel()
	r := newRack(t, bmc.IgnoresBoot)
	err := r.open(t).SetBoot(t.Context(), power.Boot{Source: power.Network})
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
}

func TestOnlyThePinnedBMCLearnsThePassword(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	o := r.options()
	other := sha256.Sum256([]byte("another certificate"))
	o.Pin = other[:]
	_, err := redfish.Open(t.Context(), o)
	require.Equal(t, "bmc-certificate", fault.CodeOf(err), "%v", err)
	o.Pin = nil // the system's authorities do not know it
	_, err = redfish.Open(t.Context(), o)
	require.Equal(t, "bmc-certificate", fault.CodeOf(err), "%v", err)
	o.Roots = x509.NewCertPool()
	cert, err := x509.ParseCertificate(r.bmc.Certificate())
	require.NoError(t, err)
	o.Roots.AddCert(cert)
	c, err := redfish.Open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, c.Close(t.Context()))
	o.URL = strings.Replace(r.url, "https", "http", 1)
	_, err = redfish.Open(t.Context(), o)
	require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
}

func TestAWrongPasswordIsTheOperatorsAffair(t *testing.T) {
	t.Parallel()
	for _, odd := range []bmc.Oddity{"", bmc.NoSessions} {
		r := newRack(t, odd)
		o := r.options()
		o.Password = "wrong"
		_, err := redfish.Open(t.Context(), o)
		require.Equal(t, "bmc-credentials", fault.CodeOf(err), "%q: %v", odd, err)
	}
}

func TestSessionsAreGivenBack(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	for range 3 {
		c, err := redfish.Open(t.Context(), r.options())
		require.NoError(t, err)
		require.Equal(t, 1, r.bmc.Sessions())
		require.NoError(t, c.Close(t.Context()))
	}
	require.Zero(t, r.bmc.Sessions())
}

func TestWhatAMachineIsMadeOfIsRead(t *testing.T) {
	t.Parallel()
	c := newRack(t).open(t)
	system, err := c.System(t.Context())
	require.NoError(t, err)
	require.Equal(t, power.System{
		Manufacturer: "Leasehold", Model: "Virtual machine", Serial: "SN1", UUID: "7f1c9c52-0000-4000-8000-000000000001", BIOSVersion: "SeaBIOS",
		MACs: []string{"52:54:00:00:00:01"}, State: power.Off,
	}, system)
	chassis, err := c.Chassis(t.Context())
	require.NoError(t, err)
	require.Equal(t, "SN1", chassis[0].Serial)
	firmware, err := c.Firmware(t.Context())
	require.NoError(t, err)
	require.Equal(t, []power.Part{{ID: "BMC", Name: "BMC firmware", Version: "1.0"}}, firmware)
	console, err := c.Console(t.Context())
	require.NoError(t, err)
	require.False(t, console.Enabled)
	require.NoError(t, c.ResetBIOS(t.Context()))
	require.NoError(t, c.ClearTPM(t.Context()))
}

// strange answers everything with one handler, over TLS.
func strange(t *testing.T, handler http.HandlerFunc) redfish.Options {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	pin := sha256.Sum256(server.Certificate().Raw)
	return redfish.Options{URL: server.URL, User: user, Password: password, Pin: pin[:], Pause: time.Millisecond, Timeout: time.Second}
}

func TestNonsenseIsAFaultAndNeverAState(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing": "", "not JSON": "<html>", "a list": "[]", "no members": `{"Members":[]}`, "two machines": `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"},{"@odata.id":"/redfish/v1/Systems/2"}]}`,
		"somewhere else": `{"Members":[{"@odata.id":"https://example.com/redfish/v1/Systems/1"}]}`,
		"itself":         `{"Members":[],"Members@odata.nextLink":"/redfish/v1/Systems"}`,
		"huge":           `{"Members":"` + strings.Repeat("x", 9<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := redfish.Open(t.Context(), strange(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.Header().Set("X-Auth-Token", "t")
				}
				_, _ = w.Write([]byte(body))
			}))
			if err != nil {
				return // found out at the log-in
			}
			state, err := c.State(t.Context())
			require.Error(t, err)
			require.Equal(t, power.Unknown, state)
		})
	}
}

func TestABMCThatRedirectsGetsNoCredentialsSentElsewhere(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked.Store(true) }))
	t.Cleanup(elsewhere.Close)
	_, err := redfish.Open(t.Context(), strange(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	require.Error(t, err)
	require.False(t, leaked.Load())
}

func TestABMCThatNeverAnswersIsUnavailable(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	o := strange(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	o.Timeout = 50 * time.Millisecond
	_, err := redfish.Open(t.Context(), o)
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
}
