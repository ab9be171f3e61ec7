package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Containers hold tenants for real, on the machine that the simulator runs on.
type Containers interface {
	node.Runtime
	access.Machine
	// Restore brings back what was open when it was halted, or when whatever ran it died.
	Restore(ctx context.Context) error
	// Halt ends what runs, and keeps what is written and who may be in.
	Halt(ctx context.Context) error
}

// ContainerMaker makes the containers of one virtual machine, which keep their files in dir.
type ContainerMaker func(ctx context.Context, m Machine, gpus gpu.Driver, dir string) (Containers, error)

// haltWithin bounds how long a virtual machine may take to be switched off.
const haltWithin = 30 * time.Second

// shared reports whether the plan means the machine to be leased in parts: its GPUs can be sliced, or no fabric joins it to others.
func (m Machine) shared() bool { return m.Fabric == "" || m.Inventory.GPUs[0].MIGEnabled }

// housed is a virtual machine whose tenants of parts are in real containers: only its GPUs are not there. Who has it as a whole, and
// what else may go wrong with it, is simulated as ever. It implements node.Runtime and access.Machine.
type housed struct {
	*box

	containers Containers
	lines      access.Sessions
	shell      *shell // knows the tenancies
}

// house gives a machine containers, if it is to have any.
func (r *run) house(ctx context.Context, m Machine, b *box, tenants *shell, dir string) (node.Runtime, access.Sessions, error) {
	if r.Containers == nil || !m.shared() {
		return b, access.Lines(tenants), nil
	}
	containers, err := r.Containers(ctx, m, b.gpus, filepath.Join(dir, "containers"))
	if err != nil {
		return nil, nil, fmt.Errorf("make containers of node %s: %w", m.Inventory.Hostname, err)
	}
	r.closers = append(r.closers, func() error { // the virtual machine is switched off
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), haltWithin)
		defer cancel()
		return containers.Halt(ctx)
	})
	if err := containers.Restore(ctx); err != nil {
		r.Log.Error("not every tenant's container could be brought back", "node", m.Inventory.Hostname, "error", err)
	}
	h := &housed{box: b, containers: containers, lines: access.Lines(tenants), shell: tenants}
	return h, h, nil
}

func inContainer(t node.Tenancy) bool { return t.Mode == "shared" }

// Prepare implements node.Runtime.
func (h *housed) Prepare(ctx context.Context, t node.Tenancy, spec protocol.PrepareSpec, progress func(int, string)) (string, error) {
	if !inContainer(t) || h.broken().prepareFails {
		return h.box.Prepare(ctx, t, spec, progress)
	}
	return h.containers.Prepare(ctx, t, spec, progress)
}

// Enter implements node.Runtime.
func (h *housed) Enter(ctx context.Context, t node.Tenancy) error {
	err := h.box.Enter(ctx, t)
	if err == nil && inContainer(t) {
		err = h.containers.Enter(ctx, t)
	}
	return err
}

// Leave implements node.Runtime.
func (h *housed) Leave(ctx context.Context, t node.Tenancy) (int, error) {
	return h.containers.Leave(ctx, t)
}

// Wipe implements node.Runtime. Of slots on which nobody is recorded both kinds of tenants' traces are looked for.
func (h *housed) Wipe(ctx context.Context, t node.Tenancy, progress func(int, string)) ([]protocol.DeviceWipe, error) {
	rows, err := h.containers.Wipe(ctx, t, progress)
	if err != nil || inContainer(t) {
		h.ports.Occupy(false, t.Ports...)
		return rows, err
	}
	more, err := h.box.Wipe(ctx, t, progress)
	return append(rows, more...), err
}

// Serve implements access.Sessions.
func (h *housed) Serve(ctx context.Context, place string, s access.Session) int {
	t, found := h.shell.tenancy(place)
	switch {
	case found && inContainer(t):
		return h.containers.Serve(ctx, place, s)
	case s.SFTP:
		return statusNotFound
	default:
		return h.lines.Serve(ctx, place, s)
	}
}

// Dial implements access.Machine.
func (h *housed) Dial(ctx context.Context, place string, port int) (net.Conn, error) {
	if t, found := h.shell.tenancy(place); !found || !inContainer(t) {
		return nil, errors.New("the built-in shell has no network")
	}
	return h.containers.Dial(ctx, place, port)
}
