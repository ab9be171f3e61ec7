package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
)

// benchAudit has the agent's own benchmark read every port of a simulated fabric; it is the agent's, so it runs there.
func benchAudit(ctx context.Context, _ *postgres.Server) error {
	cmd := exec.CommandContext(ctx, "go", "test", "./agent/internal/fabric/opensm", "-run", "^$", "-bench", "AuditOfACluster", "-benchtime", "5x")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	fmt.Println("P_Key audit by SMP of every HCA port and its switch port, on a real OpenSM over its simulator, against one smpquery for each HCA port")
	lines := bufio.NewScanner(bytes.NewReader(out))
	found := false
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "Benchmark") {
			fmt.Println(" ", line)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("nothing was measured: %s", out)
	}
	fmt.Println()
	return lines.Err()
}
