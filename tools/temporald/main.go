// Command temporald is a whole Temporal server, with its web interface, in one process on a PostgreSQL database.
//
// It makes and updates its own schema and namespace, so an empty database server is all it needs. `leasehold dev` and the tests
// run it; it is a module of its own because Temporal's server and SDK want different versions of the same API.
//
// When it takes requests it prints one line of JSON on standard output: {"address":"127.0.0.1:7233","ui":"…","took_ms":900}.
// It ends in order on SIGINT and SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"go.temporal.io/server/common/log"
)

// databaseVariable carries the database's address, which contains a password and so must not be an argument.
const databaseVariable = "TEMPORALD_DATABASE_URL"

// options are the command line and the environment.
type options struct {
	databaseURL string // administrator's, of the database for workflows; <name>_visibility lies beside it
	listen      string // IP address that the frontend and the web interface listen on
	port        int    // of the frontend
	uiPort      int    // of the web interface; 0 for none
	metricsPort int    // of Prometheus metrics; 0 for none
	shards      int    // of history; fixed for the life of the database
	namespace   string // made if missing
	retention   time.Duration
	logLevel    string
}

// ready is the line that says that requests are taken.
type ready struct {
	Address string `json:"address"`
	UI      string `json:"ui,omitempty"`
	TookMS  int64  `json:"took_ms"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "temporald:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	began := time.Now()
	opts, err := parse(args)
	if err != nil {
		return err
	}
	databases, err := parseDatabases(opts.databaseURL)
	if err != nil {
		return err
	}
	logger := log.NewZapLogger(log.BuildZapLogger(log.Config{Stdout: false, Level: opts.logLevel}))
	if err := prepareSchemas(databases, logger); err != nil {
		return err
	}
	server, err := newServer(ctx, opts, databases, logger)
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	if err := ensureNamespace(ctx, loopback(opts.port), opts.namespace, opts.retention); err != nil {
		return errors.Join(err, server.Stop())
	}
	stopUI := startUI(opts)
	line := ready{Address: opts.address(opts.port), TookMS: time.Since(began).Milliseconds()}
	if opts.uiPort != 0 {
		line.UI = "http://" + opts.address(opts.uiPort)
	}
	if err := json.NewEncoder(out).Encode(line); err != nil {
		return errors.Join(fmt.Errorf("say ready: %w", err), server.Stop())
	}
	<-ctx.Done()
	stopUI()
	if err := server.Stop(); err != nil {
		return fmt.Errorf("stop server: %w", err)
	}
	return nil
}

func parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("temporald", flag.ContinueOnError)
	flags.StringVar(&opts.listen, "listen", "127.0.0.1", "IP address to listen on")
	flags.IntVar(&opts.port, "port", 7233, "port of the gRPC frontend")
	flags.IntVar(&opts.uiPort, "ui-port", 0, "port of the web interface; 0 for none")
	flags.IntVar(&opts.metricsPort, "metrics-port", 0, "port of Prometheus metrics; 0 for none")
	flags.IntVar(&opts.shards, "shards", 4, "history shards; fixed once the database is made")
	flags.StringVar(&opts.namespace, "namespace", "default", "namespace to make if it is missing")
	flags.DurationVar(&opts.retention, "retention", 72*time.Hour, "how long the namespace keeps closed workflows")
	flags.StringVar(&opts.logLevel, "log-level", "warn", "debug, info, warn or error, on standard error")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "temporald: a Temporal server on PostgreSQL.\n\n%s must hold the database's address,\n"+
			"postgres://user:password@host:port/name, of a user who may create databases.\n\n", databaseVariable)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	opts.databaseURL = os.Getenv(databaseVariable)
	if opts.databaseURL == "" {
		return options{}, fmt.Errorf("%s is not set", databaseVariable)
	}
	if net.ParseIP(opts.listen) == nil {
		return options{}, fmt.Errorf("-listen %q is not an IP address", opts.listen)
	}
	return opts, nil
}

// address is where others find a port of this server.
func (o options) address(port int) string { return net.JoinHostPort(o.listen, strconv.Itoa(port)) }

// loopback is where this server finds a port of its own.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
