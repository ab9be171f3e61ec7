package leasetest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/workflows/isolation"
	"github.com/leasehold/leasehold/workflows/leasing"
)

//nolint:gochecknoglobals // flags are
var record = flag.Bool("record", false, "write the histories that the replay gate replays")

// record writes the lease's histories, run by run, as testdata of its package, named v<version>-<name>-<run>.json.
func (w *world) record(t *testing.T, id ids.Lease, name string) {
	t.Helper()
	if !*record {
		return
	}
	require.NoError(t, w.temporal.GetWorkflow(t.Context(), leasing.WorkflowID(id), "").Get(t.Context(), nil))
	first := w.firstRun(t, leasing.WorkflowID(id))
	for run, n := first, 1; run != ""; n++ {
		run = w.save(t, leasing.WorkflowID(id), run, filepath.Join("leasing", "testdata", "histories", fmt.Sprintf("v%d-%s-%d.json", leasing.Version, name, n)))
	}
	w.save(t, isolation.WorkflowID(w.Fabric), "", filepath.Join("isolation", "testdata", "histories", fmt.Sprintf("v%d-%s.json", isolation.Version, name)))
}

func (w *world) firstRun(t *testing.T, workflow string) string {
	t.Helper()
	history := w.temporal.GetWorkflowHistory(t.Context(), workflow, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	event, err := history.Next()
	require.NoError(t, err)
	return event.GetWorkflowExecutionStartedEventAttributes().GetFirstExecutionRunId()
}

// save writes one run and returns the one that continues it; "" for none.
func (w *world) save(t *testing.T, workflow, run, path string) string {
	t.Helper()
	var whole historypb.History
	next := ""
	events := w.temporal.GetWorkflowHistory(t.Context(), workflow, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		require.NoError(t, err)
		if a := event.GetWorkflowExecutionContinuedAsNewEventAttributes(); a != nil {
			next = a.GetNewExecutionRunId()
		}
		scrub(event)
		whole.Events = append(whole.Events, event)
	}
	body, err := temporalproto.CustomJSONMarshalOptions{Indent: " "}.Marshal(&whole)
	require.NoError(t, err)
	file := filepath.Join("..", "..", "..", "workflows", path)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, append(body, '\n'), 0o644)) //nolint:gosec // test data
	return next
}

// scrub takes out whose machine it was recorded on.
func scrub(event *historypb.HistoryEvent) {
	const nobody = "worker@recorded"
	if a := event.GetWorkflowExecutionStartedEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetWorkflowTaskStartedEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetWorkflowTaskCompletedEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetWorkflowTaskFailedEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetWorkflowExecutionSignaledEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetTimerCanceledEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetActivityTaskStartedEventAttributes(); a != nil {
		a.Identity = nobody
	}
	if a := event.GetActivityTaskCompletedEventAttributes(); a != nil {
		a.Identity = nobody
	}
}
