package isolation_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/workflows/isolation"
)

// subnet is a fabric whose agent takes a while for a sweep, whatever is in it.
type subnet struct {
	env       *testsuite.TestWorkflowEnvironment
	takes     time.Duration
	nudges    bool
	pending   int // changes that no sweep has in it yet
	inFlight  bool
	sweeping  int
	answered  bool
	applied   int // changes
	sweeps    int
	trouble   int // how many calls fail first
	recheckAt time.Time
}

func (s *subnet) Absorb(context.Context, ids.Fabric) error {
	if s.trouble > 0 {
		s.trouble--
		return fault.New(fault.Unavailable, "database-unavailable", "the database does not answer")
	}
	if s.inFlight && s.answered {
		s.applied += s.sweeping
		s.inFlight, s.answered = false, false
	}
	return nil
}

func (s *subnet) Plan(context.Context, ids.Fabric) (bool, time.Time, error) {
	if !s.inFlight && s.pending > 0 {
		s.sweeping, s.pending, s.inFlight = s.pending, 0, true
		s.sweeps++
		s.env.RegisterDelayedCallback(func() {
			s.answered = true
			if s.nudges {
				s.env.SignalWorkflow(isolation.NudgeSignal, nil)
			}
		}, s.takes)
	}
	return s.inFlight, s.recheckAt, nil
}

// want adds changes at an instant after the start, each with a nudge of its own.
func (s *subnet) want(after time.Duration, changes int) {
	for range changes {
		s.env.RegisterDelayedCallback(func() {
			s.pending++
			s.env.SignalWorkflow(isolation.NudgeSignal, nil)
		}, after)
	}
}

type quietLogger struct{}

func (quietLogger) Debug(string, ...any) {}
func (quietLogger) Info(string, ...any)  {}
func (quietLogger) Warn(string, ...any)  {}
func (quietLogger) Error(string, ...any) {}

func newSubnet() *subnet {
	suite := testsuite.WorkflowTestSuite{}
	suite.SetLogger(quietLogger{})
	s := &subnet{env: suite.NewTestWorkflowEnvironment(), takes: 2 * time.Second, nudges: true}
	s.env.SetTestTimeout(20 * time.Second)
	s.env.RegisterWorkflowWithOptions(isolation.Isolate, workflow.RegisterOptions{Name: isolation.WorkflowType})
	s.env.RegisterActivityWithOptions(&isolation.Activities{Fabric: s}, activity.RegisterOptions{})
	return s
}

func (s *subnet) run(t *testing.T) time.Duration {
	t.Helper()
	began := s.env.Now()
	s.env.ExecuteWorkflow(isolation.WorkflowType, isolation.Input{Fabric: ids.Make[ids.Fabric]()})
	require.True(t, s.env.IsWorkflowCompleted())
	return s.env.Now().Sub(began)
}

func TestALeaseHerdCostsTwoSweepsNotHundreds(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	s.want(0, 1)
	s.want(time.Second, 300) // while the first sweep is in flight
	s.run(t)
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, 301, s.applied)
	require.Equal(t, 2, s.sweeps)
}

func TestALostAnswerIsFoundByLooking(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	s.nudges = false
	s.want(0, 1)
	s.want(10*time.Second, 1)
	s.run(t)
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, 2, s.applied)
}

func TestItEndsWhenNothingIsPendingForAWhile(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	s.want(0, 1)
	took := s.run(t)
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, 1, s.sweeps)
	require.InDelta(t, time.Minute, took, float64(5*time.Second))
}

func TestItStaysForWhatIsDueLater(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	s.recheckAt = s.env.Now().Add(10 * time.Minute) // e.g. a PKey's quarantine ends then
	s.env.RegisterDelayedCallback(func() { s.recheckAt = time.Time{} }, 11*time.Minute)
	require.Greater(t, s.run(t), 10*time.Minute)
}

func TestTroubleWithTheDatabaseIsSatOut(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	s.trouble = 8 // more than the quick attempts; the test environment itself gives up after ten
	s.want(0, 1)
	s.run(t)
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, 1, s.applied)
}

func TestItContinuesAsNewBeforeItsHistoryGrowsLong(t *testing.T) {
	t.Parallel()
	s := newSubnet()
	for k := range 150 {
		s.want(time.Duration(k)*5*time.Second, 1)
	}
	s.run(t)
	var again *workflow.ContinueAsNewError
	require.ErrorAs(t, s.env.GetWorkflowError(), &again)
}

// nowhere knows no fabric.
type nowhere struct{ isolation.Fabric }

func (nowhere) Absorb(context.Context, ids.Fabric) error {
	return fault.New(fault.NotFound, "fabric-not-found", "there is no such fabric")
}

func TestAFabricThatDoesNotExistEndsTheWorkflow(t *testing.T) {
	t.Parallel()
	suite := testsuite.WorkflowTestSuite{}
	suite.SetLogger(quietLogger{})
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(isolation.Isolate, workflow.RegisterOptions{Name: isolation.WorkflowType})
	env.RegisterActivityWithOptions(&isolation.Activities{Fabric: nowhere{}}, activity.RegisterOptions{})
	env.ExecuteWorkflow(isolation.WorkflowType, isolation.Input{Fabric: ids.Make[ids.Fabric]()})
	require.ErrorContains(t, env.GetWorkflowError(), "there is no such fabric")
}
