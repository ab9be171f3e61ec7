// Package postgres runs a private PostgreSQL server from real binaries: for `leasehold dev`, which keeps its data, and
// for tests, which throw it away. It listens on the loopback interface only and asks for a password.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/backend/internal/local"
)

const (
	superuser = "postgres"
	// startTimeout covers the recovery after a crash of a development database.
	startTimeout = 60 * time.Second
	pollInterval = 20 * time.Millisecond
)

// Options say which server to run.
type Options struct {
	// DataDir keeps the data, the password and the log. It is made, with mode 0700, if missing. With Throwaway the empty string means a
	// temporary directory.
	DataDir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Throwaway trades durability for speed, and removes the data when the server stops or its starter dies.
	Throwaway bool
	// Progress is told what takes long; nil tells nobody.
	Progress func(string)
}

// A Server is a running PostgreSQL.
type Server struct {
	process  *local.Process
	dir      string
	port     int
	password string
	remove   bool
	unlock   func()
}

// Start installs the binaries if needed, makes the cluster if needed, and returns when the server takes connections.
// It fails with local.ErrPortTaken when the port is another program's, and with local.ErrLocked when another process
// runs a server on the same data.
func Start(ctx context.Context, options Options) (*Server, error) {
	bin, err := Install(ctx, options.Progress)
	if err != nil {
		return nil, err
	}
	server := &Server{dir: options.DataDir, port: options.Port, remove: options.Throwaway, unlock: func() {}}
	if err := server.start(ctx, bin, options); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), server.Stop(context.WithoutCancel(ctx)))
	}
	return server, nil
}

func (s *Server) start(ctx context.Context, bin string, options Options) error {
	if err := s.choosePort(ctx); err != nil {
		return err
	}
	if err := s.openDir(); err != nil {
		return err
	}
	if err := s.initialize(ctx, bin, options); err != nil {
		return err
	}
	if err := endOrphan(ctx, s.cluster()); err != nil {
		return err
	}
	return s.launch(ctx, bin, options)
}

// Sessions of a server that was killed stay attached to its shared memory for a moment after it is gone, and keep the next server
// away; it is tried again so many times, every lingerPause.
const (
	lingerTries = 50
	lingerPause = 100 * time.Millisecond
)

func (s *Server) launch(ctx context.Context, bin string, options Options) error {
	pause := time.NewTicker(lingerPause)
	defer pause.Stop()
	for try := 1; ; try++ {
		process, err := local.Start(ctx, s.spec(bin, options))
		if err != nil {
			return explainRoot(err)
		}
		s.process = process
		err = s.awaitReady(ctx)
		if err == nil || try == lingerTries || !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Server) choosePort(ctx context.Context) error {
	if s.port != 0 {
		return local.CheckPort(ctx, s.port)
	}
	port, err := local.FreePort(ctx)
	s.port = port
	return err
}

// openDir makes the directory and takes the lock that keeps a second starter away from it.
func (s *Server) openDir() error {
	if s.dir == "" {
		if !s.remove {
			return errors.New("no data directory given")
		}
		dir, err := os.MkdirTemp("", "leasehold-postgres-")
		if err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		s.dir = dir
	}
	dir, err := filepath.Abs(s.dir)
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	s.dir = dir
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := local.TryLock(filepath.Join(s.dir, "lock"))
	if err != nil {
		s.remove = false // it is somebody else's.
		return err
	}
	s.unlock = unlock
	return nil
}

func (s *Server) cluster() string      { return filepath.Join(s.dir, "cluster") }
func (s *Server) passwordFile() string { return filepath.Join(s.dir, "password") }

func (s *Server) spec(bin string, options Options) local.Spec {
	settings := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.port), "unix_socket_directories=",
		"max_connections=300", "shared_buffers=128MB", "log_checkpoints=off",
	}
	if options.Throwaway {
		settings = append(settings,
			"fsync=off", "synchronous_commit=off", "full_page_writes=off",
			"wal_level=minimal", "max_wal_senders=0", "max_wal_size=2GB", "checkpoint_timeout=1h")
	}
	args := []string{"-D", s.cluster()}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	spec := local.Spec{
		Name: "PostgreSQL", Path: filepath.Join(bin, "postgres"), Args: args, Dir: "/",
		LogFile: filepath.Join(s.dir, "postgres.log"), SysProcAttr: notRoot(),
		StopSignal: syscall.SIGINT, // "fast": ends sessions, writes a checkpoint.
		Grace:      30 * time.Second,
	}
	if options.Throwaway {
		spec.StopSignal = syscall.SIGQUIT // "immediate": there is nothing to keep.
		spec.RemoveOnDeath = []string{s.dir}
	}
	return spec
}

// awaitReady returns when a session can be opened. It gives up when the server ends or startTimeout is over.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	again := time.NewTicker(pollInterval)
	defer again.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.process.Done():
			return s.process.Failure()
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", startTimeout, err)
		case <-again.C:
		}
	}
}

// URL is the administrator's address of a database on this server. It contains the password.
func (s *Server) URL(database string) string {
	address := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: "127.0.0.1:" + strconv.Itoa(s.port), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return address.String()
}

// EnsureDatabase makes a database if it is missing. The name is an identifier of the caller's, not a user's input.
func (s *Server) EnsureDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("make database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	}
	if err != nil {
		return fmt.Errorf("make database %s: %w", name, err)
	}
	return nil
}

// Process is the server's process, whose unexpected end its owner may want to know of.
func (s *Server) Process() *local.Process { return s.process }

// Stop ends the server and, if it was a throwaway, removes its data.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	if s.process != nil {
		err = s.process.Stop(ctx)
	}
	if s.remove && s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	s.unlock()
	return err
}

// explainRoot says what to do where a namespace cannot be made, as in a container without the right to.
func explainRoot(err error) error {
	if os.Geteuid() == 0 && errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w; PostgreSQL refuses to run as root, and this machine does not let root make a user namespace: "+
			"run as an ordinary user, or give DATABASE_URL", err)
	}
	return err
}

func majorVersion(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output() //nolint:gosec // our binary.
	if err != nil {
		return "", fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	fields := strings.Fields(string(out)) // postgres (PostgreSQL) 18.4
	if len(fields) < 3 {
		return "", fmt.Errorf("ask PostgreSQL for its version: it said %q", out)
	}
	major, _, _ := strings.Cut(fields[2], ".")
	return major, nil
}
