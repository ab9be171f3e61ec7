package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// oci is an OCI runtime, runc or crun, as its command line has it.
type oci struct {
	path string
	root string // where the runtime keeps what it knows
}

// status is what the runtime says of a container.
type status struct {
	Status string `json:"status"` // created, running, stopped; "" for one that it does not know
	PID    int    `json:"pid"`
}

func (o oci) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.path, append([]string{"--root", o.root}, args...)...) //nolint:gosec // the operator names the program, this package its arguments
	// The runtime is not to finish a container after we are gone: whoever starts next would find it half made.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (o oci) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := o.command(ctx, args...)
	// Files and not pipes: a container that was made keeps its standard streams, and nobody waits for those to close.
	streams, err := os.CreateTemp("", "leasehold-oci-*")
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(o.path), args[0], err)
	}
	defer streams.Close() //nolint:errcheck // it was only read
	if err := os.Remove(streams.Name()); err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(o.path), args[0], err)
	}
	var out bytes.Buffer
	cmd.Stderr = streams
	if args[0] == "state" {
		cmd.Stdout = &out
	}
	if err := cmd.Run(); err != nil {
		said := make([]byte, 2048)
		n, _ := streams.ReadAt(said, 0) //nolint:errcheck // less than a buffer is as good
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(o.path), args[0], err, strings.TrimSpace(string(said[:n])))
	}
	return out.Bytes(), nil
}

// state asks about a container. One that the runtime has a directory for and cannot describe is "broken".
func (o oci) state(ctx context.Context, id string) (status, error) {
	if _, err := os.Stat(filepath.Join(o.root, id)); errors.Is(err, fs.ErrNotExist) {
		return status{}, nil
	}
	out, err := o.run(ctx, "state", id)
	var failed *exec.ExitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		return status{Status: "broken"}, nil
	}
	if err != nil {
		return status{}, err
	}
	var s status
	if err := json.Unmarshal(out, &s); err != nil {
		return status{}, fmt.Errorf("read state of %s: %w", id, err)
	}
	return s, nil
}

// create makes a container that is not started yet, and returns its first process.
func (o oci) create(ctx context.Context, id, bundle string) (int, error) {
	pidFile := filepath.Join(bundle, "pid")
	if _, err := o.run(ctx, "create", "--bundle", bundle, "--pid-file", pidFile, id); err != nil {
		return 0, err
	}
	s, err := o.state(ctx, id)
	if err == nil && s.Status != "created" {
		err = fmt.Errorf("container %s is %q and not created", id, s.Status)
	}
	return s.PID, err
}

func (o oci) start(ctx context.Context, id string) error {
	_, err := o.run(ctx, "start", id)
	return err
}

// remove ends a container and forgets it. One that is not there is no error; what the runtime cannot forget is left to forget.
func (o oci) remove(ctx context.Context, id string) {
	if _, err := os.Stat(filepath.Join(o.root, id)); err != nil {
		return
	}
	_, _ = o.run(ctx, "delete", "--force", id) //nolint:errcheck // whoever calls looks whether anything is left
}

// forget drops what the runtime keeps of a container whose processes are known to be gone.
func (o oci) forget(id string) error { return os.RemoveAll(filepath.Join(o.root, id)) }
