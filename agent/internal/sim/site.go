package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/uplink"
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
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i]())
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
		group.Go(func() error { return r.fabricAgent(ctx, subnet.Name, dir, driver) })
	}
	for number, machine := range h.Nodes {
		v, err := r.virtual(ctx, number, machine, drivers[machine.Fabric])
		if err != nil {
			return r.abandon(err)
		}
		r.boxes[machine.Inventory.Hostname] = v
		group.Go(func() error { return r.nodeAgent(ctx, number, v) })
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
	server, err := access.NewServer(ctx, access.ServerConfig{
		Dir: filepath.Join(dir, "access"), Listen: r.SSHListen, Advertise: r.SSHAdvertise, Port: r.sshPort(number), Shell: tenants,
		Now: r.Now, Log: r.Log.With("node", name),
	})
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	r.closers = append(r.closers, server.Close)
	machine, err := node.New(node.Config{
		Dir: dir, NodeID: func() string { return id.Record().NodeID }, GPU: box.gpus, RDMA: box.ports, Access: server, Runtime: box, Host: box.host,
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

// agent is what node and fabric agents have in common, once enrolled.
type agent struct {
	name   string
	id     *identity.Identity
	client *uplink.Client
	log    *slog.Logger
}

// enroll enrolls the identity, in its turn.
func (r *run) enroll(ctx context.Context, id *identity.Identity, number int, transport http.RoundTripper, request protocol.EnrollRequest) (*agent, error) {
	if err := backoff.Wait(ctx, time.Duration(number)*startSpread, nil); err != nil {
		return nil, err
	}
	client, err := uplink.NewClient(r.Server, &http.Client{Transport: transport}, id, r.Now, r.Insecure)
	if err != nil {
		return nil, err
	}
	a := &agent{name: request.Name, id: id, client: client, log: r.Log.With("agent", request.Name)}
	request.Token, request.BootID, request.AgentVersion = r.Token, r.BootID, r.Version
	select {
	case r.gate <- struct{}{}:
		defer func() { <-r.gate }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := uplink.Enroll(ctx, uplink.Config{Client: client, Identity: id, Enroll: request, Retry: r.Retry, Log: a.log}); err != nil {
		return nil, err
	}
	if r.waiting.Add(-1) == 0 && r.Ready != nil {
		r.Ready(r.total[0], r.total[1])
	}
	return a, nil
}

// work runs the agent until ctx ends.
func (r *run) work(ctx context.Context, a *agent, source uplink.Source, handlers map[protocol.OperationKind]operation.Handler, whole bool) error {
	runner, err := operation.Open(operation.Config{
		Dir: a.id.Dir(), Handlers: handlers, Signer: a.id, Reporter: a.client, Now: a.client.Now, Log: a.log, Whole: whole, Retry: r.Retry,
	})
	if err != nil {
		return fmt.Errorf("open journal of %s: %w", a.name, err)
	}
	var sequence atomic.Int64
	return uplink.New(uplink.Config{
		Client: a.client, Identity: a.id, Runner: runner, Source: source, BootID: r.BootID, Every: r.Heartbeat, Retry: r.Retry, Log: a.log,
		Sequence: func() int64 { return sequence.Add(1) },
	}).Run(ctx)
}

func (r *run) nodeAgent(ctx context.Context, number int, v *virtual) error {
	name := v.inventory.Hostname
	transport := &cuttable{next: r.HTTP.Transport, cut: func() bool { return v.broken().unreachable }}
	a, err := r.enroll(ctx, v.id, number, transport, protocol.EnrollRequest{Kind: protocol.NodeAgent, Name: name, Serial: v.inventory.Serial})
	if err != nil {
		return unlessEnded(ctx, err)
	}
	return r.work(ctx, a, v.node, v.node.Handlers(), false)
}

func (r *run) fabricAgent(ctx context.Context, name, dir string, driver fabric.Driver) error {
	id, err := identity.Open(dir)
	if err != nil {
		return fmt.Errorf("open identity of fabric %s: %w", name, err)
	}
	a, err := r.enroll(ctx, id, 0, r.HTTP.Transport, protocol.EnrollRequest{Kind: protocol.FabricAgent, Name: name})
	if err != nil {
		return unlessEnded(ctx, err)
	}
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: a.id.Record().FabricID, Now: a.client.Now})
	return r.work(ctx, a, fabricSource{driver}, handlers, true)
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// fabricSource is a subnet as its agent reports it.
type fabricSource struct{ driver fabric.Driver }

// Inventory implements uplink.Source.
func (s fabricSource) Inventory(ctx context.Context) (protocol.Inventory, error) {
	report, err := fabric.Inventory(ctx, s.driver)
	return protocol.Inventory{Fabric: &report}, err
}

// Health implements uplink.Source.
func (s fabricSource) Health(context.Context) ([]protocol.Condition, []protocol.Sample, error) {
	return nil, nil, nil
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
