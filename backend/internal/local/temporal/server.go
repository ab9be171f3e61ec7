// Package temporal finds or starts the Temporal server that a single machine's worker talks to.
package temporal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/leasehold/leasehold/backend/internal/local"
)

const (
	// frontend is the name under which Temporal reports the health of what workers and clients talk to.
	frontend     = "temporal.api.workflowservice.v1.WorkflowService"
	startTimeout = 90 * time.Second // the first start makes a schema; others take a tenth of a second.
	probeTimeout = 2 * time.Second
	probePeriod  = 100 * time.Millisecond
)

// Options say which server to use.
type Options struct {
	// DatabaseURL is an administrator's address of a PostgreSQL database for workflows, which need not exist yet. A second
	// database, <name>_visibility, is made beside it.
	DatabaseURL string
	// Namespace is made if it is missing; "default" if empty. A server that others run must have it.
	Namespace string
	// Port and UIPort on 127.0.0.1; 0 takes free ones.
	Port, UIPort int
	// DataDir keeps the log. It is made if missing.
	DataDir string
	// Progress is told what takes long; nil tells nobody.
	Progress func(string)
}

// A Server is a Temporal server that takes requests.
type Server struct {
	address string
	ui      string
	process *local.Process // nil if others run it
	said    firstLine      // our own server says by a line that its namespace exists, which comes after its health
}

// firstLine is a writer that remembers whether a line has been written to it.
type firstLine struct{ written atomic.Bool }

// Write implements io.Writer.
func (l *firstLine) Write(text []byte) (int, error) {
	if bytes.IndexByte(text, '\n') >= 0 {
		l.written.Store(true)
	}
	return len(text), nil
}

// Start returns when the server takes requests. It uses, in this order, the server at TEMPORAL_ADDRESS, a program named temporal on
// PATH, and temporald from this source tree, which is built once into the cache directory. It fails with
// local.ErrPortTaken when a port is another program's.
func Start(ctx context.Context, options Options) (*Server, error) {
	if options.Namespace == "" {
		options.Namespace = "default"
	}
	if address := os.Getenv("TEMPORAL_ADDRESS"); address != "" {
		server := &Server{address: address}
		if err := server.awaitReady(ctx); err != nil {
			return nil, fmt.Errorf("use Temporal at TEMPORAL_ADDRESS=%s: %w", address, err)
		}
		return server, nil
	}
	if err := choosePorts(ctx, &options); err != nil {
		return nil, fmt.Errorf("start Temporal: %w", err)
	}
	if err := os.MkdirAll(options.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("start Temporal: %w", err)
	}
	server := &Server{address: loopback(options.Port), ui: "http://" + loopback(options.UIPort)}
	spec, err := server.program(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("start Temporal: %w", err)
	}
	server.process, err = local.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := server.awaitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Temporal: %w", err), server.Stop(context.WithoutCancel(ctx)))
	}
	return server, nil
}

func choosePorts(ctx context.Context, options *Options) error {
	for _, port := range []*int{&options.Port, &options.UIPort} {
		if *port != 0 {
			if err := local.CheckPort(ctx, *port); err != nil {
				return err
			}
			continue
		}
		free, err := local.FreePort(ctx)
		if err != nil {
			return err
		}
		*port = free
	}
	return nil
}

// program says how to start what was found: Temporal's own development server, or ours.
func (s *Server) program(ctx context.Context, options Options) (local.Spec, error) {
	spec := local.Spec{Name: "Temporal", Dir: options.DataDir, LogFile: filepath.Join(options.DataDir, "temporal.log"), Grace: 20 * time.Second}
	port, uiPort := strconv.Itoa(options.Port), strconv.Itoa(options.UIPort)
	if path, err := exec.LookPath("temporal"); err == nil {
		s.said.written.Store(true) // its health must do.
		spec.Path = path
		spec.Args = []string{
			"server", "start-dev", "--ip", "127.0.0.1", "--port", port, "--ui-port", uiPort, "--namespace", options.Namespace,
			"--db-filename", filepath.Join(options.DataDir, "temporal.db"), "--log-level", "warn",
		}
		return spec, nil
	}
	path, err := Build(ctx, options.Progress)
	if err != nil {
		return local.Spec{}, err
	}
	spec.Path = path
	spec.Args = []string{"-port", port, "-ui-port", uiPort, "-namespace", options.Namespace}
	spec.Stdout = &s.said
	spec.Env = []string{"TEMPORALD_DATABASE_URL=" + options.DatabaseURL} // a password: not for the process list.
	return spec, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// awaitReady asks the frontend for its health until it is well, the process has ended, or startTimeout is over.
func (s *Server) awaitReady(ctx context.Context) error {
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to Temporal: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	again := time.NewTicker(probePeriod)
	defer again.Stop()
	for {
		err := probe(ctx, conn)
		if err == nil && (s.process == nil || s.said.written.Load()) {
			return nil
		}
		select {
		case <-s.ended():
			return s.process.Failure()
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", startTimeout, errors.Join(ctx.Err(), err))
		case <-again.C:
		}
	}
}

// ended is closed when the process has ended. It is never closed for a server that others run.
func (s *Server) ended() <-chan struct{} {
	if s.process == nil {
		return nil
	}
	return s.process.Done()
}

func probe(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	reply, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: frontend})
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	if reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("check health: it is %s", reply.GetStatus())
	}
	return nil
}

// Address is the frontend's host and port.
func (s *Server) Address() string { return s.address }

// UI is the address of the web interface; empty for a server that others run.
func (s *Server) UI() string { return s.ui }

// Process is the server's process, or nil if others run it.
func (s *Server) Process() *local.Process { return s.process }

// Stop ends the server, unless others run it.
func (s *Server) Stop(ctx context.Context) error {
	if s.process == nil {
		return nil
	}
	return s.process.Stop(ctx)
}
