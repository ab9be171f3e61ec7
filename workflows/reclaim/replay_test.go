package reclaim_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/workflows/reclaim"
)

// TestEveryVersionHasAHistory fails for a version of the process of which no history was recorded; package leasetest records them:
// go test ./backend/internal/leasetest -record.
func TestEveryVersionHasAHistory(t *testing.T) {
	t.Parallel()
	for version := 1; version <= reclaim.Version; version++ {
		found, err := filepath.Glob(filepath.Join("testdata", "histories", fmt.Sprintf("v%d-*.json", version)))
		require.NoError(t, err)
		require.NotEmpty(t, found, "version %d has no recorded history", version)
	}
}

func TestEveryRecordedHistoryReplays(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			replayer := worker.NewWorkflowReplayer()
			replayer.RegisterWorkflowWithOptions(reclaim.Node, workflow.RegisterOptions{Name: reclaim.WorkflowType})
			require.NoError(t, replayer.ReplayWorkflowHistoryFromJSONFile(quietLogger{}, file))
		})
	}
}
