// Command leasehold-agent is the control plane's hand on a GPU host (node), beside a subnet manager (fabric), or on a whole
// simulated site (sim). It only ever dials out.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// version is set when a release is built.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasehold-agent:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "leasehold-agent",
		Short:         "The agent of Leasehold: on a GPU host, beside a subnet manager, or a whole simulated site",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(nodeCommand(), serviceOSCommand(), fabricCommand(), simCommand())
	return cmd
}

// common is what every mode is told.
type common struct {
	server, tokenFile, stateDir, caFile string
	insecure, exitWithParent, verbose   bool
	logJSON                             bool
}

func (c *common) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.server, "server", "", "address of the control plane, e.g. https://api.example.com")
	f.StringVar(&c.tokenFile, "token-file", "", "file with the enrolment token; needed until enrolled")
	f.StringVar(&c.stateDir, "state-dir", "", "directory for keys, journal and state")
	f.StringVar(&c.caFile, "ca-file", "", "PEM file with the authority that signs the control plane's certificate, if it is a private one")
	f.BoolVar(&c.insecure, "insecure-http", false, "allow plain http to other machines than this one")
	f.BoolVar(&c.exitWithParent, "exit-with-parent", false, "end when standard input is closed")
	f.BoolVar(&c.verbose, "verbose", false, "log more")
	f.BoolVar(&c.logJSON, "log-json", false, "log as JSON lines")
	for _, name := range []string{"server", "state-dir"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined right above
		}
	}
}

func (c *common) log() *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.verbose {
		options.Level = slog.LevelDebug
	}
	if c.logJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

// token reads the token's file. There may be none once everything is enrolled.
func (c *common) token() (string, error) {
	if c.tokenFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.tokenFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (c *common) client() (*http.Client, error) {
	transport, err := newTransport(c.caFile)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// lifetime ends with the parent, when that was asked for.
func (c *common) lifetime(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if c.exitWithParent {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) //nolint:errcheck // whatever ends it, the parent is gone
			cancel()
		}()
	}
	return ctx, cancel
}

func now() time.Time { return time.Now().UTC() }
