package doctor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/ids"
)

// body is what the rows and Temporal say, look by look.
type body struct {
	live, running [][]ids.Lease
	looks         int
	err           error
}

func (b *body) Examine(context.Context) ([]doctor.Finding, error) {
	return []doctor.Finding{{Invariant: 1, Claim: "c", What: "w", Found: "f"}}, b.err
}

func (b *body) Live(context.Context, time.Time) ([]ids.Lease, error) {
	return b.live[min(b.looks-1, len(b.live)-1)], nil
}

func (b *body) Running(context.Context) (map[ids.Lease]bool, error) {
	running := map[ids.Lease]bool{}
	for _, lease := range b.running[min(b.looks, len(b.running)-1)] {
		running[lease] = true
	}
	b.looks++
	return running, nil
}

func run(t *testing.T, b *body) []doctor.Finding {
	t.Helper()
	found, err := (&doctor.Doctor{Rows: b, Workflows: b, Clock: clock.System{}, Settle: time.Millisecond}).Run(t.Context())
	require.NoError(t, err)
	return found[1:] // the first is the rows'
}

func TestALeaseWithoutAWorkflowIsABreach(t *testing.T) {
	t.Parallel()
	lease := ids.Make[ids.Lease]()
	found := run(t, &body{live: [][]ids.Lease{{lease}}, running: [][]ids.Lease{{}}})
	require.Len(t, found, 1)
	require.Equal(t, 6, found[0].Invariant)
	require.Equal(t, lease.String(), found[0].What)
	require.Contains(t, found[0].String(), "invariant 6")
}

func TestAWorkflowWithoutALeaseIsABreach(t *testing.T) {
	t.Parallel()
	found := run(t, &body{live: [][]ids.Lease{{}}, running: [][]ids.Lease{{ids.Make[ids.Lease]()}}})
	require.Len(t, found, 1)
	require.Equal(t, 6, found[0].Invariant)
}

func TestWhatIsJustStartingOrEndingIsNoBreach(t *testing.T) {
	t.Parallel()
	starting, ending := ids.Make[ids.Lease](), ids.Make[ids.Lease]()
	require.Empty(t, run(t, &body{live: [][]ids.Lease{{starting}}, running: [][]ids.Lease{{ending}, {starting}}}))
}

func TestAnExaminationThatFailsIsNotHealth(t *testing.T) {
	t.Parallel()
	_, err := (&doctor.Doctor{Rows: &body{err: errors.New("no database")}}).Run(t.Context())
	require.ErrorContains(t, err, "no database")
}

// torn is an audit log with a gap.
type torn struct{}

func (torn) Verify(context.Context) ([]doctor.Finding, error) {
	return []doctor.Finding{{Invariant: 9, What: "a chain"}}, nil
}

func TestATornAuditLogIsABreach(t *testing.T) {
	t.Parallel()
	found, err := (&doctor.Doctor{Rows: &body{}, Log: torn{}}).Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, found, doctor.Finding{Invariant: 9, What: "a chain"})
}

func TestEveryInvariantHasWords(t *testing.T) {
	t.Parallel()
	require.Len(t, doctor.Invariants(), 9)
}

// bills has one wrong bill.
type bills struct{ err error }

func (b bills) Audit(context.Context) ([]doctor.Finding, error) {
	return []doctor.Finding{{Invariant: 5, Claim: "c", What: "lease", Found: "a cent too much"}}, b.err
}

func TestABillThatItsFactsDoNotSayIsABreach(t *testing.T) {
	t.Parallel()
	b := &body{live: [][]ids.Lease{{}}, running: [][]ids.Lease{{}}}
	found, err := (&doctor.Doctor{Rows: b, Bills: bills{}, Workflows: b, Clock: clock.System{}}).Run(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, "a cent too much", found[1].Found)
	_, err = (&doctor.Doctor{Rows: b, Bills: bills{errors.New("no database")}}).Run(t.Context())
	require.ErrorContains(t, err, "audit bills")
}
