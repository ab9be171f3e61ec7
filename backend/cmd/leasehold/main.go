// Command leasehold is the backend and the customer's command line in one binary: `leasehold dev` runs everything on this machine,
// `api`, `worker` and `migrate` are the parts of a larger installation, and the rest is for people who rent.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/internal/cli"
)

// version is set by the linker.
var version = "dev" //nolint:gochecknoglobals // the linker can set nothing else

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "leasehold:", err)
	}
	return cli.ExitStatus(err)
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "leasehold",
		Short: "Rent and operate time-boxed GPU and InfiniBand capacity",
		Long: `Rent and operate time-boxed GPU and InfiniBand capacity.

Exit statuses: 0 done; 1 failed; 2 wrong command line; 3 not logged in or not allowed; 4 not found; 5 taken, changed meanwhile or
expired; 6 balance or budget does not suffice; 7 server unreachable or busy, try again; 8 a check or proof did not hold.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(&cobra.Group{ID: "server", Title: "Running:"})
	for _, c := range []*cobra.Command{devCommand(), apiCommand(), workerCommand(), migrateCommand(), seedCommand(), doctorCommand(), demoCommand(), machineCommand(), imageCommand()} {
		c.GroupID = "server"
		root.AddCommand(c)
	}
	cli.Commands(root)
	return root
}
