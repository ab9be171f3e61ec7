package local_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/local"
)

func TestTheLastPartStartedIsTheFirstToStop(t *testing.T) {
	t.Parallel()
	var children local.Children
	var order []string
	for _, name := range []string{"database", "orchestrator"} {
		children.Add(name, func(context.Context) error {
			order = append(order, name)
			return nil
		})
	}
	children.Go(t.Context(), "api", func(ctx context.Context) error {
		<-ctx.Done()
		order = append(order, "api")
		return ctx.Err()
	})
	require.NoError(t, children.Stop(t.Context()))
	require.Equal(t, []string{"api", "orchestrator", "database"}, order)
	require.NoError(t, children.Stop(t.Context()), "a second stop has nothing to do")
}

func TestAPartThatReturnsEarlyIsAFailure(t *testing.T) {
	t.Parallel()
	var children local.Children
	children.Go(t.Context(), "api", func(context.Context) error { return nil })
	require.ErrorContains(t, <-children.Failed(), "api ended")
	require.NoError(t, children.Stop(t.Context()))
}

func TestAFailedStopDoesNotKeepTheOthersRunning(t *testing.T) {
	t.Parallel()
	var children local.Children
	stopped := false
	children.Add("database", func(context.Context) error {
		stopped = true
		return nil
	})
	children.Add("api", func(context.Context) error { return errors.New("stuck") })
	require.ErrorContains(t, children.Stop(t.Context()), "stop api: stuck")
	require.True(t, stopped)
}

func TestADeadChildIsReportedWithTheEndOfItsLog(t *testing.T) {
	t.Parallel()
	var children local.Children
	process, err := local.Start(t.Context(), local.Spec{
		Name: "agent", Path: "/bin/sh", Args: []string{"-c", "echo no such fabric; exit 3"}, LogFile: t.TempDir() + "/log",
	})
	require.NoError(t, err)
	children.AddProcess(process)
	failure := <-children.Failed()
	require.ErrorContains(t, failure, "exit status 3")
	require.ErrorContains(t, failure, "no such fabric")
	require.NoError(t, children.Stop(t.Context()))
}
