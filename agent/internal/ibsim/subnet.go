package ibsim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Files in a subnet's directory.
const (
	PartitionsFile = "partitions.conf"
	OptionsFile    = "opensm.conf"
	netlistFile    = "net.txt"
	simulatorLog   = "ibsim.log"
	managerLog     = "osm.log"
)

// Config says which subnet to run and where.
type Config struct {
	Topology protocol.Topology
	// Dir holds the netlist, OpenSM's files and logs. It is made if missing. One subnet per directory.
	Dir   string
	Tools Tools
}

// Subnet is a simulator with an OpenSM on it.
type Subnet struct {
	config    Config
	base      string
	netlist   netlist
	simulator *child
	logs      []io.Closer
	client    *smp.Client

	consoleTurn sync.Mutex
	closing     sync.Once
	closed      error

	mu      sync.Mutex
	manager *child
	keys    managerKeys
}

// managerKeys are the subnet's secrets, fresh for each run; the simulator does not enforce them.
type managerKeys struct{ m, sm, sa uint64 }

const stopPatience = 5 * time.Second

// Start runs the simulator and attaches to it. OpenSM is started by StartManager, after its partition file is in place:
// OpenSM without a valid file makes every port a full member of the default partition.
func Start(ctx context.Context, config Config) (*Subnet, error) {
	list, err := newNetlist(config.Topology)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start subnet: %w", err)
	}
	s := &Subnet{config: config, base: newBase(), netlist: list, keys: newManagerKeys()}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start subnet: %w", err), s.Close())
	}
	return s, nil
}

func (s *Subnet) start(ctx context.Context) error {
	path := filepath.Join(s.config.Dir, netlistFile)
	if err := os.WriteFile(path, []byte(s.netlist.text), 0o600); err != nil {
		return err
	}
	if err := s.writeOptions(); err != nil {
		return err
	}
	if err := s.startSimulator(ctx, path); err != nil {
		return err
	}
	transport, err := Dial(ctx, s.base, smName)
	if err != nil {
		return err
	}
	s.client = smp.NewClient(transport, s.keys.m)
	return nil
}

// newBase returns a name for the simulator's sockets that nobody else uses.
func newBase() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "lh" + hex.EncodeToString(b[:])
}

func newManagerKeys() managerKeys {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return managerKeys{binary.BigEndian.Uint64(b[0:]), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}

// writeOptions writes the manager's options.
func (s *Subnet) writeOptions() error {
	return os.WriteFile(s.path(OptionsFile), []byte(s.options(managerPriority)), 0o600)
}

// options are OpenSM's, as hardened as this OpenSM can be (it has one M_Key for all ports).
func (s *Subnet) options(priority int) string {
	return fmt.Sprintf("m_key 0x%016x\nm_key_lease_period 0\nm_key_protection_level 1\n"+
		"sm_key 0x%016x\nsa_key 0x%016x\npart_enforce both\nallow_both_pkeys FALSE\nsm_priority %d\n%s",
		s.keys.m, s.keys.sm, s.keys.sa, priority, pollingOptions)
}

func (s *Subnet) path(name string) string { return filepath.Join(s.config.Dir, name) }

func (s *Subnet) startSimulator(ctx context.Context, netlistPath string) error {
	log, err := logFile(s.path(simulatorLog))
	if err != nil {
		return err
	}
	s.logs = append(s.logs, log)
	t := s.config.Topology
	nodes := len(t.Switches) + len(t.Ports) + 1
	ports := 2 * len(t.Ports)
	for _, count := range portCounts(t) {
		ports += count + 2
	}
	//nolint:gosec,contextcheck,noctx // the tool that the caller chose; it outlives the caller's context
	cmd := exec.Command(s.config.Tools.Simulator, "-s", "-N", strconv.Itoa(nodes+8), "-S", strconv.Itoa(len(t.Switches)+8),
		"-P", strconv.Itoa(ports+64), netlistPath)
	cmd.Dir = s.config.Dir
	cmd.Env = append(s.config.Tools.libraries(), "IBSIM_SOCKNAME="+s.base)
	// The console's input must never end, or the simulator spins.
	if s.simulator, err = startChild(cmd, log, true); err != nil {
		return err
	}
	if err := s.simulator.waitFor(ctx, 0, "Network simulator ready"); err != nil {
		return err
	}
	if err := s.simulator.waitFor(ctx, 0, prompt); err != nil {
		return err
	}
	// It says ready before it opens its sockets; a command is answered only after.
	return s.Console(ctx, "Attached")
}

// prompt is what the simulator's console prints when it has done a command.
const prompt = "sim> "

// Console gives the simulator a command and waits until it is done, e.g. `Unlink "n1-h0"[1]`.
func (s *Subnet) Console(ctx context.Context, command string) error {
	s.consoleTurn.Lock()
	defer s.consoleTurn.Unlock()
	from := s.simulator.output.now()
	if _, err := io.WriteString(s.simulator.stdin, command+"\n"); err != nil {
		return fmt.Errorf("tell simulator %q: %w", command, err)
	}
	return s.simulator.waitFor(ctx, from, prompt)
}

// Cut unplugs the cable of an HCA port.
func (s *Subnet) Cut(ctx context.Context, guid protocol.GUID) error {
	return s.onPort(ctx, "Unlink %v", guid)
}

// Join plugs it in again.
func (s *Subnet) Join(ctx context.Context, guid protocol.GUID) error {
	return s.onPort(ctx, "ReLink %v", guid)
}

// Lose makes a port drop all packets (or none) without unplugging it.
func (s *Subnet) Lose(ctx context.Context, guid protocol.GUID, percent int) error {
	return s.onPort(ctx, "Error %v "+strconv.Itoa(percent), guid)
}

func (s *Subnet) onPort(ctx context.Context, format string, guid protocol.GUID) error {
	at, known := s.netlist.hosts[guid]
	if !known {
		return fmt.Errorf("find port %v: not in the netlist", guid)
	}
	return s.Console(ctx, fmt.Sprintf(format, at))
}

// Client returns the subnet's one shared client, attached to the manager's HCA. Close closes it.
func (s *Subnet) Client() *smp.Client { return s.client }

// ManagerPort is the GUID of the port that OpenSM runs on.
func (s *Subnet) ManagerPort() protocol.GUID { return smPortGUID }

// Dir is where the subnet's files are.
func (s *Subnet) Dir() string { return s.config.Dir }

// Command returns a diagnostic (smpquery, saquery) set up to speak to this simulator from an HCA port, for cross-checks. Each
// takes one of the simulator's ten places while it runs. ErrNoTools: it is not installed.
func (s *Subnet) Command(ctx context.Context, from protocol.GUID, name string, args ...string) (*exec.Cmd, error) {
	program, err := findProgram(name, s.config.Tools.prefixes)
	if err != nil {
		return nil, err
	}
	node := smName
	if at, known := s.netlist.hosts[from]; known {
		node = at.name
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // tests choose it
	cmd.Dir = s.config.Dir
	cmd.Env = s.config.Tools.environment(s.base, node)
	return cmd, nil
}

// Close stops OpenSM, then the simulator: the other way round OpenSM would hang. It may be called more than once.
func (s *Subnet) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Subnet) close() error {
	s.StopManager()
	var faults []error
	if s.client != nil {
		faults = append(faults, s.client.Close())
	}
	if s.simulator != nil {
		s.simulator.stop(stopPatience)
	}
	for _, log := range s.logs {
		faults = append(faults, log.Close())
	}
	return errors.Join(faults...)
}

// SimulatorPID returns the simulator's process.
func (s *Subnet) SimulatorPID() int { return s.simulator.cmd.Process.Pid }

// Dial attaches one more client to the simulator, as the named node.
func (s *Subnet) Dial(ctx context.Context, node string) (smp.Transport, error) {
	return Dial(ctx, s.base, node)
}
