package bmc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/tools/virtualsite/bmc"
)

// box is a machine that has only power.
type box struct {
	mu          sync.Mutex
	on, network bool
}

func (b *box) On() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on
}

func (b *box) turn(on, network bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on, b.network = on, network
	return nil
}

func (b *box) TurnOn(_ context.Context, network bool, _ func(bool)) error {
	return b.turn(true, network)
}

func (b *box) TurnOff(context.Context) error { return b.turn(false, false) }

func (b *box) PressPower(context.Context) error { return b.turn(false, false) }

func serve(t *testing.T) (*box, string) {
	t.Helper()
	machine := &box{}
	c, err := bmc.New(bmc.Config{
		Name: "node-1", UUID: "7f1c9c52-0000-4000-8000-000000000001", Serial: "SN1", MAC: "52:54:00:00:00:01", User: "operator", Password: "secret", Host: machine,
	})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return machine, listener.Addr().String()
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	// Where these name a bundle, Python's requests checks certificates against it even when it was told not to check.
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "REQUESTS_CA_BUNDLE=") || strings.HasPrefix(variable, "CURL_CA_BUNDLE=")
	})
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	require.NoError(t, command.Run(), "%s %v:\n%s%s", name, args, out.String(), errs.String())
	return out.String()
}

// TestRedfishtoolFindsItsWay has DMTF's own client, as Debian packages it, use the simulator.
func TestRedfishtoolFindsItsWay(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redfishtool"); err != nil {
		t.Skip("redfishtool is not installed (apt-get install redfishtool)")
	}
	machine, address := serve(t)
	tool := func(args ...string) string {
		return run(t, "redfishtool", append([]string{"-r", address, "-u", "operator", "-p", "secret", "-S", "Always", "-A", "Basic"}, args...)...)
	}
	var system struct {
		PowerState   string `json:"PowerState"`   //nolint:tagliatelle // Redfish's
		SerialNumber string `json:"SerialNumber"` //nolint:tagliatelle // Redfish's
	}
	require.NoError(t, json.Unmarshal([]byte(tool("Systems", "-I", "1")), &system))
	require.Equal(t, "Off", system.PowerState)
	require.Equal(t, "SN1", system.SerialNumber)
	tool("Systems", "-I", "1", "setBootOverride", "Once", "Pxe")
	tool("Systems", "-I", "1", "reset", "On")
	require.True(t, machine.On())
	require.True(t, machine.network)
	tool("Systems", "-I", "1", "reset", "ForceOff")
	require.False(t, machine.On())
	require.Contains(t, tool("raw", "GET", "/redfish/v1/Systems/1/LogServices/SEL/Entries"), "power off")
	require.Contains(t, tool("Chassis", "-I", "1"), "SN1")
}

// sushyScript has OpenStack's Redfish library do what a bare-metal service does with it.
const sushyScript = `
import sys, warnings
warnings.simplefilter("ignore")
import sushy, sushy.auth
conn = sushy.Sushy("https://" + sys.argv[1] + "/redfish/v1/", verify=False,
                   auth=sushy.auth.SessionOrBasicAuth(username="operator", password="secret"))
system = conn.get_system_collection().get_members()[0]
assert system.power_state == sushy.PowerState.OFF, system.power_state
assert sushy.RESET_ON in system.get_allowed_reset_system_values()
system.set_system_boot_options(sushy.BootSource.PXE, enabled=sushy.BootSourceOverrideEnabled.ONCE)
system.reset_system(sushy.ResetType.ON)
system.refresh()
assert system.power_state == sushy.PowerState.ON, system.power_state
system.reset_system(sushy.ResetType.FORCE_OFF)
system.refresh()
assert system.power_state == sushy.PowerState.OFF, system.power_state
print(system.serial_number, list(system.ethernet_interfaces.summary))
`

func TestSushyFindsItsWay(t *testing.T) {
	t.Parallel()
	if exec.CommandContext(t.Context(), "python3", "-c", "import sushy").Run() != nil {
		t.Skip("sushy is not installed (apt-get install python3-sushy)")
	}
	machine, address := serve(t)
	said := run(t, "python3", "-c", sushyScript, address)
	require.Equal(t, "SN1 ['52:54:00:00:00:01']", strings.TrimSpace(said))
	require.False(t, machine.On())
}
