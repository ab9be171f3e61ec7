package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/daemon"
	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/protocol"
)

// FabricMaker makes the driver of a simulated subnet, which keeps its files in dir. The returned function ends it.
type FabricMaker func(ctx context.Context, subnet Subnet, dir string) (fabric.Driver, func() error, error)

// Options is what a simulated site is run with.
type Options struct {
	Server   string
	Insecure bool // plain http to other machines
	HTTP     *http.Client
	Token    string // for what is not enrolled yet
	StateDir string
	Site     Site
	Instant  bool // work takes no time
	Fabric   FabricMaker
	// Containers makes real containers for tenants of parts of machines; nil: all tenants are simulated.
	Containers ContainerMaker
	// SSHListen is the address that nodes' SSH servers listen on, SSHAdvertise the host that customers are told ("": the same),
	// SSHPort the first node's port (0: of the system's choosing), counted up by node.
	SSHListen, SSHAdvertise string
	SSHPort                 int
	Heartbeat               time.Duration // 0: as enrolment says
	Version                 string
	BootID                  string // of all machines: they were switched on together
	Retry                   backoff.Policy
	Now                     func() time.Time
	Log                     *slog.Logger
	// Ready is called when all agents are enrolled; may be nil.
	Ready func(nodes, fabrics int)
}

// enrolAtOnce bounds the enrolments under way, and startSpread is by how much agents start apart, so that a large site does not
// fall upon its control plane.
const (
	enrolAtOnce = 8
	startSpread = 2 * time.Millisecond
)

// run is a site under way.
type run struct {
	Options

	lock    *durable.Lock
	group   *errgroup.Group
	gate    chan struct{} // enrolments under way
	waiting atomic.Int64  // agents that are not enrolled yet
	total   [2]int
	boxes   map[string]*virtual
	closers []func() error
}

// virtual is a virtual machine with its agent's parts.
type virtual struct {
	*box

	id     *identity.Identity
	node   *node.Node
	access *access.Server
}

// Run runs the site until ctx ends. A second Run in the same directory is refused; one after it finds everything as it was: keys,
// journals, whose data lies where, and who may log in.
func Run(ctx context.Context, o Options) (err error) {
	hardware, err := Generate(o.Site)
	if err != nil {
		return err
	}
	lock, err := durable.LockDir(o.StateDir)
	if err != nil {
		return fmt.Errorf("run simulated site: %w", err)
	}
	r := &run{Options: o, lock: lock, gate: make(chan struct{}, enrolAtOnce), boxes: map[string]*virtual{}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.build(ctx, hardware); err != nil {
		return err
	}
	return r.group.Wait()
}

func (r *run) close() error {
	var errs []error
	for _, end := range slices.Backward(r.closers) {
		errs = append(errs, end())
	}
	return errors.Join(append(errs, r.lock.Unlock())...)
}

// build makes fabrics, then nodes on them, and starts everything in the group.
func (r *run) build(ctx context.Context, h Hardware) error {
	group, ctx := errgroup.WithContext(ctx)
	r.group = group
	r.total = [2]int{len(h.Nodes), len(h.Fabrics)}
	r.waiting.Store(int64(len(h.Nodes) + len(h.Fabrics)))
	drivers := map[string]fabric.Driver{}
	for _, subnet := range h.Fabrics {
		dir := filepath.Join(r.StateDir, "fabrics", subnet.Name)
		driver, end, err := r.Fabric(ctx, subnet, filepath.Join(dir, "subnet"))
		if err != nil {
			return r.abandon(fmt.Errorf("start fabric %s: %w", subnet.Name, err))
		}
		r.closers = append(r.closers, end)
		drivers[subnet.Name] = driver
		a, err := r.fabricAgent(subnet.Name, dir, driver)
		if err != nil {
			return r.abandon(err)
		}
		group.Go(func() error { return a.Run(ctx) })
	}
	for number, machine := range h.Nodes {
		v, err := r.virtual(ctx, number, machine, drivers[machine.Fabric])
		if err != nil {
			return r.abandon(err)
		}
		r.boxes[machine.Inventory.Hostname] = v
		a := r.nodeAgent(number, v)
		group.Go(func() error { return a.Run(ctx) })
	}
	control, err := listenControl(ctx, filepath.Join(r.StateDir, ControlSocket))
	if err != nil {
		return r.abandon(err)
	}
	group.Go(func() error { return r.serveControl(ctx, control) })
	return nil
}

// abandon ends what has been started already.
func (r *run) abandon(err error) error {
	r.group.Go(func() error { return err })
	return r.group.Wait()
}

func (r *run) virtual(ctx context.Context, number int, m Machine, subnet fabric.Driver) (*virtual, error) {
	name := m.Inventory.Hostname
	dir := r.nodeDir(name)
	box, err := newBox(m, filepath.Join(dir, "machine"), subnet, r.Instant, r.Now)
	if err != nil {
		return nil, err
	}
	id, err := identity.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	tenants := &shell{box: box}
	runtime, sessions, err := r.house(ctx, m, box, tenants, dir)
	if err != nil {
		return nil, err
	}
	server, err := access.NewServer(ctx, access.ServerConfig{
		Dir: filepath.Join(dir, "access"), Listen: r.SSHListen, Advertise: r.SSHAdvertise, Port: r.sshPort(number), Sessions: sessions,
		Now: r.Now, Log: r.Log.With("node", name),
	})
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	r.closers = append(r.closers, server.Close)
	machine, err := node.New(node.Config{
		Dir: dir, NodeID: func() string { return id.Record().NodeID }, GPU: box.gpus, RDMA: box.ports, Access: server, Runtime: runtime, Host: box.host,
		Now: r.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	tenants.settle(machine)
	box.reoccupy(machine.Tenancies())
	return &virtual{box: box, id: id, node: machine, access: server}, nil
}

func (r *run) sshPort(number int) int {
	if r.SSHPort == 0 {
		return 0
	}
	return r.SSHPort + number
}

func (r *run) nodeDir(name string) string { return filepath.Join(r.StateDir, "nodes", name) }

// agent is what node and fabric agents have in common. number is the agent's place in the order of starting.
func (r *run) agent(id *identity.Identity, number int, request protocol.EnrollRequest, transport http.RoundTripper) *daemon.Agent {
	request.Token, request.BootID, request.AgentVersion = r.Token, r.BootID, r.Version
	var sequence atomic.Int64
	return &daemon.Agent{
		Line: daemon.Line{
			Server: r.Server, Insecure: r.Insecure, Transport: transport, Heartbeat: r.Heartbeat, Retry: r.Retry, Now: r.Now,
		},
		Identity: id, Enroll: request, BootID: r.BootID, Sequence: func() int64 { return sequence.Add(1) }, Log: r.Log.With("agent", request.Name),
		Turn:     func(ctx context.Context) (func(), error) { return r.turn(ctx, number) },
		Enrolled: r.enrolled,
	}
}

// turn keeps a large site from falling upon its control plane.
func (r *run) turn(ctx context.Context, number int) (func(), error) {
	if err := backoff.Wait(ctx, time.Duration(number)*startSpread, nil); err != nil {
		return nil, err
	}
	select {
	case r.gate <- struct{}{}:
		return func() { <-r.gate }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *run) enrolled() {
	if r.waiting.Add(-1) == 0 && r.Ready != nil {
		r.Ready(r.total[0], r.total[1])
	}
}

func (r *run) nodeAgent(number int, v *virtual) *daemon.Agent {
	request := protocol.EnrollRequest{Kind: protocol.NodeAgent, Name: v.inventory.Hostname, Serial: v.inventory.Serial}
	a := r.agent(v.id, number, request, &cuttable{next: r.HTTP.Transport, cut: func() bool { return v.broken().unreachable }})
	a.Build = func(func() time.Time) (daemon.Parts, error) {
		return daemon.Parts{Source: v.node, Handlers: v.node.Handlers()}, nil
	}
	return a
}

func (r *run) fabricAgent(name, dir string, driver fabric.Driver) (*daemon.Agent, error) {
	id, err := identity.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open identity of fabric %s: %w", name, err)
	}
	a := r.agent(id, 0, protocol.EnrollRequest{Kind: protocol.FabricAgent, Name: name}, r.HTTP.Transport)
	a.Build = func(now func() time.Time) (daemon.Parts, error) {
		handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: id.Record().FabricID, Now: now})
		return daemon.Parts{Source: fabric.Source{Driver: driver}, Handlers: handlers, Whole: true}, nil
	}
	return a, nil
}

// errCut is what an unreachable machine's agent gets.
var errCut = errors.New("network is unreachable (injected)")

// cuttable is a line that can be cut.
type cuttable struct {
	next http.RoundTripper
	cut  func() bool
}

// RoundTrip implements http.RoundTripper. An answer that arrives after the cut does not arrive.
func (c *cuttable) RoundTrip(request *http.Request) (*http.Response, error) {
	if c.cut() {
		return nil, errCut
	}
	response, err := c.next.RoundTrip(request)
	if err == nil && c.cut() {
		_ = response.Body.Close() //nolint:errcheck // nobody reads it
		return nil, errCut
	}
	return response, err
}
