package ibsim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// ErrManagerDown means that OpenSM does not run.
var ErrManagerDown = errors.New("the subnet manager does not run")

// subnetUp is what OpenSM logs at the end of a heavy sweep without errors. It proves that OpenSM is there, and nothing about
// any port's table.
const subnetUp = "SUBNET UP"

// StartManager starts OpenSM and waits for the end of its first sweep. The partition file must be in place.
func (s *Subnet) StartManager(ctx context.Context) error {
	if err := s.startManager(); err != nil {
		return err
	}
	manager := s.currentManager()
	if err := manager.waitFor(ctx, 0, subnetUp); err != nil {
		return fmt.Errorf("start OpenSM: %w", err)
	}
	return nil
}

func (s *Subnet) startManager() error {
	if _, err := os.Stat(s.path(PartitionsFile)); err != nil {
		return fmt.Errorf("start OpenSM without its partition file, which opens the fabric: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.manager != nil && s.manager.running() {
		return errors.New("start OpenSM: it runs already")
	}
	log, err := logFile(s.path(managerLog))
	if err != nil {
		return err
	}
	s.logs = append(s.logs, log)
	//nolint:gosec,noctx // the tool that the caller chose; it outlives the caller's context
	cmd := exec.Command(s.config.Tools.OpenSM, "-F", s.path(OptionsFile), "-d", "2", "-f", "stdout",
		"--dump_files_dir", s.config.Dir, "-P", s.path(PartitionsFile))
	cmd.Dir = s.config.Dir
	cmd.Env = append(s.config.Tools.environment(s.base, smName), "OSM_TMP_DIR="+s.config.Dir, "OSM_CACHE_DIR="+s.config.Dir)
	s.manager, err = startChild(cmd, log, false)
	return err
}

func (s *Subnet) currentManager() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.manager
}

// StopManager ends OpenSM and returns when it is gone.
func (s *Subnet) StopManager() {
	if manager := s.currentManager(); manager != nil {
		manager.stop(stopPatience)
	}
}

// KillManager ends OpenSM as a crash would. A killed client keeps its place in the simulator; the place is given back here.
func (s *Subnet) KillManager(ctx context.Context) error {
	manager := s.currentManager()
	if manager == nil {
		return ErrManagerDown
	}
	manager.kill()
	// OpenSM was the second client, after our own.
	return s.Console(ctx, "X 1")
}

// ManagerPID returns OpenSM's process, or ErrManagerDown.
func (s *Subnet) ManagerPID(context.Context) (int, error) {
	manager := s.currentManager()
	if manager == nil || !manager.running() {
		return 0, ErrManagerDown
	}
	return manager.cmd.Process.Pid, nil
}

// Sweeps counts the heavy sweeps that the running OpenSM has ended well.
func (s *Subnet) Sweeps() int {
	manager := s.currentManager()
	if manager == nil {
		return 0
	}
	return manager.output.count(0, subnetUp)
}

// Complaints tells whether the running OpenSM found fault with its partition file.
func (s *Subnet) Complaints() bool {
	manager := s.currentManager()
	return manager != nil && strings.Contains(manager.output.tail(transcriptKept), "PARSE ERROR")
}

// Hangup asks OpenSM to read its files and sweep.
func (s *Subnet) Hangup(ctx context.Context) error {
	if _, err := s.ManagerPID(ctx); err != nil {
		return err
	}
	if err := s.currentManager().cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal OpenSM: %w", err)
	}
	return nil
}
