package power

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Deps are what a Service works with; all are needed but Log.
type Deps struct {
	Tx       Transactor
	Machines Machines
	Work     Work
	Agents   Agents
	Nodes    Nodes
	Dialer   Dialer
	Vault    Vault
	Audit    Audit
	Clock    clock.Clock
	Log      *slog.Logger
	Pace     Pace   // DefaultPace when zero
	Worker   string // names this process among several
	// NodesURL is where machines reach the control plane from their own network, without a slash at its end.
	NodesURL string
	// InsecureNodes has machines speak to us by plain HTTP.
	InsecureNodes bool
}

// Service has machines switched and booted.
type Service struct{ Deps }

// New returns a Service.
func New(deps Deps) *Service {
	if deps.Pace == (Pace{}) {
		deps.Pace = DefaultPace()
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{deps}
}

// bootWithin is how long a machine may take from power-off to an agent in its service OS: large servers test their memory for many minutes.
const bootWithin = 30 * time.Minute

// Registration is what an admin says of a machine.
type Registration struct {
	Site       ids.Site
	Name       string
	URL        string
	User       string
	Password   string
	Pin        []byte
	System     string
	MACs       []string
	AccessHost string
	AccessPort int
}

// check returns an Invalid fault that names every defect.
func (r Registration) check() error {
	problem := fault.New(fault.Invalid, "machine", "the machine is not described properly")
	address, err := url.Parse(r.URL)
	if err != nil || address.Scheme != "https" || address.Host == "" || address.User != nil {
		problem = problem.At("/url", "https://host[:port] of its BMC, with no name or password in it")
	}
	if r.User == "" || r.Password == "" {
		problem = problem.At("/user", "a user and a password of the BMC")
	}
	if len(r.Pin) != 0 && len(r.Pin) != 32 {
		problem = problem.At("/certificate_sha256", "the 32 bytes of a SHA-256")
	}
	if len(r.MACs) == 0 {
		problem = problem.At("/macs", "at least one address of a network card that it boots from")
	}
	for _, mac := range r.MACs {
		if parsed, err := net.ParseMAC(mac); err != nil || len(parsed) != 6 {
			problem = problem.At("/macs", fmt.Sprintf("%q is no MAC address", mac))
		}
	}
	if r.AccessPort < 0 || r.AccessPort > 65535 {
		problem = problem.At("/access_port", "1 to 65535")
	}
	if len(problem.Fields) > 0 {
		return problem
	}
	return nil
}

// Register makes a machine known by its BMC, under its node's name, and has it boot the service OS, from which its agent enrols. A machine
// that is known gets the new address and password, and goes on with what it runs: fresh says that it was not.
//
// It returns an Invalid fault that names every defect, and the faults of a Controller when the BMC cannot be logged in to.
func (s *Service) Register(ctx context.Context, r Registration) (node ids.Node, fresh bool, err error) {
	if err := r.check(); err != nil {
		return ids.Node{}, false, fmt.Errorf("register machine: %w", err)
	}
	address := Address{URL: r.URL, User: r.User, Pin: r.Pin, System: r.System}
	if err := s.try(ctx, address, r.Password); err != nil {
		return ids.Node{}, false, fmt.Errorf("register machine: %w", err)
	}
	err = s.within(ctx, "register machine", func(ctx context.Context) error {
		if node, err = s.Nodes.NodeID(ctx, r.Site, r.Name); err != nil {
			return err
		}
		_, err = s.Machines.Machine(ctx, node)
		if fresh = fault.Is(err, fault.NotFound); err != nil && !fresh {
			return err
		}
		address.Secret = s.Vault.Seal([]byte(r.Password), about(node))
		if err := s.put(ctx, node, address, r); err != nil || !fresh {
			return err
		}
		_, err = s.Work.Ask(ctx, node, ids.Allocation{}, 0, Order{Goal: GoalService}, bootWithin)
		return err
	})
	return node, fresh, err
}

func (s *Service) put(ctx context.Context, node ids.Node, address Address, r Registration) error {
	now := s.Clock.Now()
	m := Machine{
		Node: node, BMC: address, MACs: lower(r.MACs), AccessHost: r.AccessHost, AccessPort: r.AccessPort, Stage: StageUnknown, StageSince: now, CreatedAt: now,
	}
	if err := s.Machines.PutMachine(ctx, m); err != nil {
		return err
	}
	said := map[string]any{"url": r.URL, "user": r.User, "macs": m.MACs, "access_host": r.AccessHost, "access_port": r.AccessPort}
	return s.Audit.Record(ctx, "machine.registered", node.String(), nil, said)
}

// Recall has a machine that nobody has boot the service OS anew.
//
// It returns a NotFound fault, and a Conflict fault, code "machine-leased", while a lease has it: then its process sees to it.
func (s *Service) Recall(ctx context.Context, node ids.Node) (ids.Operation, error) {
	var id ids.Operation
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		if _, err := s.Machines.Machine(ctx, node); err != nil {
			return err
		}
		occupied, err := s.Machines.Occupied(ctx, node)
		if err != nil {
			return err
		}
		if occupied {
			return fault.New(fault.Conflict, "machine-leased", "a lease has the machine; its own process boots it")
		}
		if id, err = s.Work.Ask(ctx, node, ids.Allocation{}, 0, Order{Goal: GoalService}, bootWithin); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "machine.recalled", node.String(), nil, nil)
	})
	if err != nil {
		return ids.Operation{}, fmt.Errorf("recall machine: %w", err)
	}
	return id, nil
}

// try logs in and out.
func (s *Service) try(ctx context.Context, a Address, password string) error {
	c, err := s.Dialer.Dial(ctx, a, password)
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // its sessions end by themselves
	_, err = c.State(ctx)
	return err
}

// about names what a password belongs to.
func about(node ids.Node) string { return "bmc/" + node.String() }

func lower(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = strings.ToLower(s)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// dial logs in to a machine's BMC.
func (s *Service) dial(ctx context.Context, m Machine) (Controller, error) {
	password, err := s.Vault.Unseal(m.BMC.Secret, about(m.Node))
	if err != nil {
		return nil, fault.New(fault.Internal, "bmc-secret", "the BMC's password cannot be unsealed: %w", err)
	}
	return s.Dialer.Dial(ctx, m.BMC, string(password))
}
