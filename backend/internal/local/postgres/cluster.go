package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// orphanGrace is how long the server of a starter that died may take to end: its watchdog is at it.
const orphanGrace = 30 * time.Second

// initialize makes the cluster on first use, and otherwise checks that these binaries can read it.
func (s *Server) initialize(ctx context.Context, bin string, options Options) error {
	version, err := os.ReadFile(filepath.Join(s.cluster(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return s.create(ctx, bin, options)
	}
	if err != nil {
		return fmt.Errorf("read cluster: %w", err)
	}
	have, err := majorVersion(ctx, bin)
	if err != nil {
		return err
	}
	if made := strings.TrimSpace(string(version)); made != have {
		return fmt.Errorf("the data in %s were written by PostgreSQL %s and these binaries are %s: move the directory away, "+
			"or set LEASEHOLD_POSTGRES_BIN to the other version", s.dir, made, have)
	}
	password, err := os.ReadFile(s.passwordFile())
	if err != nil {
		return fmt.Errorf("read password: %w", err)
	}
	s.password = strings.TrimSpace(string(password))
	return nil
}

// create runs initdb beside the final place, so that a cluster is there either whole or not at all.
func (s *Server) create(ctx context.Context, bin string, options Options) error {
	if options.Progress != nil {
		options.Progress("making a database cluster")
	}
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("make password: %w", err)
	}
	s.password = hex.EncodeToString(secret)
	if err := os.WriteFile(s.passwordFile(), []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write password: %w", err)
	}
	work := s.cluster() + ".new"
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	args := []string{
		"-D", work, "-U", superuser, "--pwfile", s.passwordFile(), "-A", "scram-sha-256",
		"-E", "UTF8", "--locale=C", "--no-instructions",
	}
	if options.Throwaway {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...) //nolint:gosec // our binary.
	cmd.Dir = "/"
	cmd.SysProcAttr = notRoot()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make cluster: initdb: %w: %s", explainRoot(err), out)
	}
	if err := os.Rename(work, s.cluster()); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	return nil
}

// endOrphan clears the way for a new server on a cluster that nobody has the lock of. A server that still runs there has lost its starter: it
// is given time to end, then asked to. A postmaster.pid that names no such server is stale; PostgreSQL itself would only see that
// the number is in use by some process of the same user, and refuse.
func endOrphan(ctx context.Context, cluster string) error {
	file := filepath.Join(cluster, "postmaster.pid")
	raw, err := os.ReadFile(file) //nolint:gosec // in our own data directory.
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && runsOn(pid, cluster) {
		_ = syscall.Kill(pid, syscall.SIGINT)
		if err := awaitEnd(ctx, pid, cluster); err != nil {
			return err
		}
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale postmaster.pid: %w", err)
	}
	return nil
}

func awaitEnd(ctx context.Context, pid int, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, orphanGrace)
	defer cancel()
	again := time.NewTicker(pollInterval)
	defer again.Stop()
	for runsOn(pid, cluster) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("a PostgreSQL server (process %d) still runs on %s and does not end: %w", pid, cluster, ctx.Err())
		case <-again.C:
		}
	}
	return nil
}

// runsOn tells whether a process works in the cluster's directory, as a PostgreSQL server does.
func runsOn(pid int, cluster string) bool {
	dir, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	return err == nil && dir == cluster
}
