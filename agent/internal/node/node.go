// Package node does a node's operations on whatever drivers the machine has: prepare, grant, revoke, wipe, observe_pkeys; and
// reports its inventory and health. It remembers whose data lies on which slots until a wipe has shown that it is gone.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Codes of refusals.
const (
	CodeInvalidSpec     = protocol.FaultInvalidSpec  // the operation could not be understood
	CodeUnsupported     = "unsupported-on-this-host" // the machine lacks the driver for it
	CodeNotWiped        = "earlier-tenant-not-wiped" // other data may still lie on the slots
	CodePreflightFailed = "preflight-failed"         // the hardware is not what was promised
	CodeNotPrepared     = "not-prepared"             // the lease has no place on this node
	CodeStillOpen       = "access-not-revoked"       // somebody could still log in
	CodeLoginPossible   = "login-not-refused"        // after the revocation a log-in worked
	CodeWipeFailed      = "wipe-failed"              // a device is not shown to be clean
)

// Runtime is what holds a tenant: an image on the bare machine, or a container.
type Runtime interface {
	// Prepare makes the tenant's place ready and returns the image's digest. It may run twice.
	Prepare(ctx context.Context, t Tenancy, spec protocol.PrepareSpec, step func(percent int, phase string)) (string, error)
	// Enter is called when the tenant is let in: from now on the place is used.
	Enter(ctx context.Context, t Tenancy) error
	// Leave is called when the tenant has been shut out. It ends what the tenant left running, if that is this host's to end, and returns
	// how many processes that were. A place that is not there is no error.
	Leave(ctx context.Context, t Tenancy) (processes int, err error)
	// Wipe erases what a tenant of these slots could have written outside the GPUs' memory, one row a device, and reads back.
	Wipe(ctx context.Context, t Tenancy, step func(percent int, phase string)) ([]protocol.DeviceWipe, error)
}

// Config is what a node is made of. Access and Runtime may be nil: the operations that need them are then refused.
type Config struct {
	Dir    string        // keeps the tenancies
	NodeID func() string // known from the enrolment on
	GPU    gpu.Driver
	RDMA   rdma.Driver
	Access access.Driver
	Runtime
	// Host is the inventory without GPUs, HCAs and driver.
	Host func(ctx context.Context) (protocol.NodeInventory, error)
	// Conditions adds what the drivers do not know; may be nil.
	Conditions func() []protocol.Condition
	Now        func() time.Time
}

// Node is one machine.
type Node struct {
	cfg Config

	mu        sync.Mutex
	tenancies []Tenancy
}

// New opens the node's memory.
func New(cfg Config) (*Node, error) {
	n := &Node{cfg: cfg}
	if err := n.load(); err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	return n, nil
}

func (n *Node) file() string { return filepath.Join(n.cfg.Dir, "tenancies.json") }

// Handlers returns the handlers of the node's operations.
func (n *Node) Handlers() map[protocol.OperationKind]operation.Handler {
	return map[protocol.OperationKind]operation.Handler{
		protocol.Prepare:      handler(n.prepare),
		protocol.Grant:        handler(n.grant),
		protocol.Revoke:       handler(n.revoke),
		protocol.Wipe:         handler(n.wipe),
		protocol.ObservePKeys: handler(n.observePKeys),
	}
}

// step reports progress.
type step func(percent int, phase string)

// handler adapts a method to operation.Handler.
type handler func(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error)

// Handle implements operation.Handler.
func (h handler) Handle(ctx context.Context, op protocol.Operation, progress func(int, string)) (operation.Outcome, error) {
	return h(ctx, op, progress)
}

func decode(op protocol.Operation, spec any) error {
	if err := json.Unmarshal(op.Spec, spec); err != nil {
		return refuse(CodeInvalidSpec, "decode %s: %v", op.Kind, err)
	}
	return nil
}

// needSlots refuses an operation that says not what it is about.
func needSlots(op protocol.Operation) error {
	if op.Slots.To <= op.Slots.From {
		return refuse(CodeInvalidSpec, "%s covers no slots", op.Kind)
	}
	return nil
}

// refuse is a failure that the same operation would meet again.
func refuse(code, format string, args ...any) error {
	return &operation.Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// postpone is a failure that may pass.
func postpone(code, format string, args ...any) error {
	return &operation.Refusal{Code: code, Detail: fmt.Sprintf(format, args...), Retryable: true}
}

// Inventory implements uplink.Source.
func (n *Node) Inventory(ctx context.Context) (protocol.Inventory, error) {
	report, err := n.cfg.Host(ctx)
	if err != nil {
		return protocol.Inventory{}, fmt.Errorf("take inventory: %w", err)
	}
	report.Driver = n.cfg.GPU.Version()
	if report.GPUs, err = n.cfg.GPU.Devices(ctx); err != nil && !errors.Is(err, gpu.ErrNoDriver) {
		return protocol.Inventory{}, fmt.Errorf("take inventory of GPUs: %w", err)
	}
	if report.HCAs, err = n.cfg.RDMA.Inventory(ctx); err != nil {
		return protocol.Inventory{}, fmt.Errorf("take inventory of adapters: %w", err)
	}
	if report.GPUs == nil {
		report.GPUs = []protocol.GPU{}
	}
	if report.HCAs == nil {
		report.HCAs = []protocol.HCA{}
	}
	if report.Disks == nil {
		report.Disks = []protocol.Disk{}
	}
	return protocol.Inventory{Node: &report}, nil
}

// Health implements uplink.Source. Meters are read only while somebody rents: nobody sees them otherwise.
func (n *Node) Health(ctx context.Context) ([]protocol.Condition, []protocol.Sample, error) {
	conditions, err := n.conditions(ctx)
	if err != nil || !n.rented() {
		return conditions, nil, err
	}
	samples, err := n.cfg.GPU.Samples(ctx)
	if err != nil {
		return conditions, nil, fmt.Errorf("read GPU meters: %w", err)
	}
	more, err := n.cfg.RDMA.Samples(ctx)
	if err != nil {
		return conditions, nil, fmt.Errorf("read port meters: %w", err)
	}
	return conditions, append(samples, more...), nil
}

func (n *Node) conditions(ctx context.Context) ([]protocol.Condition, error) {
	all, err := n.cfg.GPU.Health(ctx)
	if err != nil {
		return nil, fmt.Errorf("read GPU health: %w", err)
	}
	ports, err := n.cfg.RDMA.Health(ctx)
	if err != nil {
		return nil, fmt.Errorf("read port health: %w", err)
	}
	all = append(all, ports...)
	if n.cfg.Conditions != nil {
		all = append(all, n.cfg.Conditions()...)
	}
	return all, nil
}
