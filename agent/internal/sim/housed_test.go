package sim_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/sim"
	"github.com/leasehold/leasehold/agent/protocol"
)

// barracks stands for the containers of a site's machines, and writes down what is asked of it.
type barracks struct {
	mu   sync.Mutex
	asks []string
}

func (b *barracks) maker(_ context.Context, m sim.Machine, _ gpu.Driver, _ string) (sim.Containers, error) {
	return quarters{barracks: b, machine: m.Inventory.Hostname}, nil
}

func (b *barracks) ask(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks = append(b.asks, fmt.Sprintf(format, args...))
}

func (b *barracks) asked(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.asks, what)
}

type quarters struct {
	*barracks

	machine string
}

func (q quarters) Prepare(_ context.Context, t node.Tenancy, _ protocol.PrepareSpec, _ func(int, string)) (string, error) {
	q.ask("prepare %s %s", q.machine, t.Place())
	return "sha256:c", nil
}

func (q quarters) Enter(_ context.Context, t node.Tenancy) error {
	q.ask("enter %s", t.Place())
	return nil
}

func (q quarters) Leave(_ context.Context, t node.Tenancy) (int, error) {
	q.ask("leave %s", t.Place())
	return 2, nil
}

func (q quarters) Wipe(_ context.Context, t node.Tenancy, _ func(int, string)) ([]protocol.DeviceWipe, error) {
	q.ask("wipe %s", t.Place())
	return []protocol.DeviceWipe{{Kind: "container", Identity: q.machine, Status: protocol.Wiped, ReadBackSamples: 1}}, nil
}

func (q quarters) Serve(_ context.Context, place string, s access.Session) int {
	fmt.Fprintf(s.Out, "container of %s: %s", place, s.Command)
	return 0
}

func (q quarters) Dial(_ context.Context, place string, port int) (net.Conn, error) {
	q.ask("dial %s %d", place, port)
	return nil, errors.New("nobody")
}

func (q quarters) Restore(context.Context) error {
	q.ask("restore %s", q.machine)
	return nil
}

func (q quarters) Halt(context.Context) error {
	q.ask("halt %s", q.machine)
	return nil
}

func TestTenantsOfPartsAreInContainersAndOthersAreNot(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), &barracks{}
	w.containers = b.maker
	stop := w.run()
	const name, lease = "gpu-a100-01", "lease_1"
	slots := protocol.Slots{From: 8, To: 16}
	prepared := succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, slots, protocol.PrepareSpec{
		LeaseID: lease, Hostname: "h", Mode: "shared", GPUUUIDs: []string{w.machine(name).GPUs[1].UUID}, PortGUIDs: []protocol.GUID{}, Image: "i",
	}))
	require.Equal(t, "sha256:c", prepared.ImageDigest)
	at := succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, slots, w.grantSpec(lease)))
	require.Equal(t, "container of lease_1/8-16: hostname", w.mustSSH(at, "hostname"))
	revoked := succeeded[protocol.RevokeEvidence](t, w.order(name, protocol.Revoke, 1, slots, protocol.RevokeSpec{LeaseID: lease}))
	require.Equal(t, 2, revoked.ProcessesEnded)
	certificate := succeeded[protocol.WipeEvidence](t, w.order(name, protocol.Wipe, 1, slots, protocol.WipeSpec{LeaseID: lease, Nonce: "n"}))
	require.Equal(t, "container", certificate.Devices[0].Kind)

	const whole = "gpu-h100-01"
	succeeded[protocol.PrepareEvidence](t, w.order(whole, protocol.Prepare, 1, all(), w.prepareSpec(whole, "lease_2")))
	at = succeeded[protocol.GrantEvidence](t, w.order(whole, protocol.Grant, 1, all(), w.grantSpec("lease_2")))
	require.Equal(t, whole+"\n", w.mustSSH(at, "hostname"), "who has a machine whole is not in a container")
	require.False(t, b.asked("restore "+whole))

	stop()
	require.True(t, b.asked("restore "+name))
	require.True(t, b.asked("halt "+name), "containers outlive their machine")
}
