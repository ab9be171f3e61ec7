// Command withdb runs a program with LEASEHOLD_TEST_DATABASE_URL naming a throwaway PostgreSQL server that lives as long as the
// program does, so that all test processes of a run share one. A server that the variable names already is used as it is.
//
//	withdb go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
)

const variable = "LEASEHOLD_TEST_DATABASE_URL"

func main() {
	// Ctrl-C reaches the program as well; the server must outlive it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withdb:", err)
	}
	os.Exit(code) //nolint:gocritic // the signals need no restoring at the end.
}

// run returns the program's exit status.
func run(ctx context.Context, program []string) (int, error) {
	if len(program) == 0 {
		return 2, errors.New("usage: withdb PROGRAM [ARGUMENT...]")
	}
	if os.Getenv(variable) == "" {
		server, err := postgres.Start(ctx, postgres.Options{
			Throwaway: true,
			Progress:  func(line string) { fmt.Fprintln(os.Stderr, line) },
		})
		if err != nil {
			return 1, err
		}
		defer func() { _ = server.Stop(context.WithoutCancel(ctx)) }()
		if err := os.Setenv(variable, server.URL("postgres")); err != nil {
			return 1, fmt.Errorf("tell the program: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, program[0], program[1:]...) //nolint:gosec // what the caller asked for.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", program[0], err)
	}
	return 0, nil
}
