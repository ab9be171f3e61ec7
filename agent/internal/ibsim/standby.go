package ibsim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Standby is a second OpenSM on the subnet, on a host of its own, with files of its own. It watches the first and takes over when that is
// gone; what it does then follows from its own partition file.
type Standby struct {
	subnet  *Subnet
	dir     string
	process *child
	log     *os.File
}

// The first manager outranks the standby, and both look often whether the other is there: by default a standby takes 40 s to notice.
const (
	managerPriority = 14
	standbyPriority = 1
	pollingOptions  = "sminfo_polling_timeout 200\npolling_retry_number 2\n"
)

// ErrManagerStuck means that the manager did not get through the sweep in which it finds the standby. It happens to one pair in five: the
// simulator loses a message between the two, and its umad library has no time-outs, so the manager waits for ever. The subnet is of no use then.
var ErrManagerStuck = errors.New("the simulator has lost a message between the managers")

// arrival is how long the manager may take for the sweep in which it finds the standby.
const arrival = 3 * time.Second

// StartStandby starts an OpenSM on the host of the port, with its files in dir, and waits until it stands by and the manager has seen it. Its
// partition file must be in place: a manager that takes over without one opens the fabric. Close it before the subnet.
//
// It returns ErrManagerStuck when the simulator has failed, and another subnet is needed.
func (s *Subnet) StartStandby(ctx context.Context, at protocol.GUID, dir string) (*Standby, error) {
	host, known := s.netlist.hosts[at]
	if !known {
		return nil, fmt.Errorf("start standby: there is no port %v", at)
	}
	if _, err := os.Stat(filepath.Join(dir, PartitionsFile)); err != nil {
		return nil, fmt.Errorf("start standby without its partition file, which opens the fabric: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, OptionsFile), []byte(s.options(standbyPriority)), 0o600); err != nil {
		return nil, fmt.Errorf("start standby: %w", err)
	}
	standby, before := &Standby{subnet: s, dir: dir}, s.currentManager().output.now()
	if err := standby.start(ctx, host.name); err != nil {
		return nil, errors.Join(fmt.Errorf("start standby: %w", err), standby.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	if err := s.currentManager().waitFor(ctx, before, subnetUp); err != nil {
		return nil, errors.Join(fmt.Errorf("start standby: %w (%w)", ErrManagerStuck, err), standby.Close())
	}
	return standby, nil
}

func (b *Standby) start(ctx context.Context, host string) (err error) {
	if b.log, err = logFile(filepath.Join(b.dir, managerLog)); err != nil {
		return err
	}
	tools := b.subnet.config.Tools
	//nolint:gosec,noctx // the tool that the caller chose; it outlives the caller's context
	cmd := exec.Command(tools.OpenSM, "-F", filepath.Join(b.dir, OptionsFile), "-d", "2", "-f", "stdout",
		"--dump_files_dir", b.dir, "-P", filepath.Join(b.dir, PartitionsFile))
	cmd.Dir = b.dir
	cmd.Env = append(tools.environment(b.subnet.base, host), "OSM_TMP_DIR="+b.dir, "OSM_CACHE_DIR="+b.dir)
	if b.process, err = startChild(cmd, b.log, false); err != nil {
		return err
	}
	return b.process.waitFor(ctx, 0, "Entering STANDBY state")
}

// TakenOver waits until the standby is the manager and has ended its first sweep.
func (b *Standby) TakenOver(ctx context.Context) error {
	if err := b.process.waitFor(ctx, 0, subnetUp); err != nil {
		return fmt.Errorf("wait for the standby: %w", err)
	}
	return nil
}

// Dir is where its files are.
func (b *Standby) Dir() string { return b.dir }

// PID returns its process, or ErrManagerDown.
func (b *Standby) PID(context.Context) (int, error) {
	if !b.process.running() {
		return 0, ErrManagerDown
	}
	return b.process.cmd.Process.Pid, nil
}

// Hangup asks it to read its files.
func (b *Standby) Hangup(ctx context.Context) error {
	if _, err := b.PID(ctx); err != nil {
		return err
	}
	if err := b.process.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal standby: %w", err)
	}
	return nil
}

// Close stops it.
func (b *Standby) Close() error {
	if b.process != nil {
		b.process.stop(stopPatience)
	}
	if b.log == nil {
		return nil
	}
	return b.log.Close()
}
