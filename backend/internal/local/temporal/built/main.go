// Command built sees to it that this source tree's Temporal server is in the cache, so that no test's time-out runs while it compiles.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/leasehold/leasehold/backend/internal/local/temporal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := temporal.Build(ctx, func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
		fmt.Fprintln(os.Stderr, "built:", err)
		os.Exit(1) //nolint:gocritic // the signals need no restoring at the end.
	}
}
