// Package doctor examines the live database for breaches of the domain's invariants. It changes nothing.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
)

// Finding is one breach.
type Finding struct {
	Invariant int    `json:"invariant"` // its number, 1 to 9; Invariants has the words
	Claim     string `json:"claim"`     // what should hold
	What      string `json:"what"`      // where it does not
	Found     string `json:"found"`     // what is there instead
}

// String is the finding in a line.
func (f Finding) String() string {
	return fmt.Sprintf("invariant %d: %s: %s: %s", f.Invariant, f.Claim, f.What, f.Found)
}

// Invariants are the domain's, by number from 1.
func Invariants() []string {
	return []string{
		"no two live allocations overlap in node, slots and time",
		"live allocations are legal, and ports are members of exactly the partitions that these say",
		"a PKey means one partition on its fabric until it is free again",
		"the ledger sums to zero, and no balance is below its floor",
		"charge lines are what the invoices say, and what is not billed yet",
		"every lease under way has a live workflow, and every live workflow such a lease",
		"no node goes back on the market without a verified wipe and an empty partition",
		"another organization's things are not found",
		"the audit log has neither gaps nor changes",
	}
}

// Rows examines the database.
type Rows interface {
	// Examine returns breaches of all invariants but the sixth, at most a hundred of each claim.
	Examine(ctx context.Context) ([]Finding, error)
	// Live lists the leases that must have a workflow.
	Live(ctx context.Context, now time.Time) ([]ids.Lease, error)
}

// Bills rates settled leases again.
type Bills interface {
	// Audit returns the leases whose charges are not what their facts cost.
	Audit(ctx context.Context) ([]Finding, error)
}

// Log reads the audit log again.
type Log interface {
	// Verify returns the places where its chains are not whole.
	Verify(ctx context.Context) ([]Finding, error)
}

// Workflows knows which leases have a live workflow.
type Workflows interface {
	Running(ctx context.Context) (map[ids.Lease]bool, error)
}

// Doctor examines.
type Doctor struct {
	Rows      Rows
	Bills     Bills     // nil: no bill is rated again
	Log       Log       // nil: the ninth invariant is not examined
	Workflows Workflows // nil: the sixth invariant is not examined
	Clock     clock.Clock
	// Settle is how long a lease may be without its workflow, or a workflow be there still, before that is a breach: what starts
	// and ends needs a moment, and what Temporal shows is some seconds old.
	Settle time.Duration
}

// Run returns every breach that it finds; none means that all invariants hold.
func (d *Doctor) Run(ctx context.Context) ([]Finding, error) {
	findings, err := d.Rows.Examine(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine database: %w", err)
	}
	if d.Bills != nil {
		wrong, err := d.Bills.Audit(ctx)
		if err != nil {
			return nil, fmt.Errorf("audit bills: %w", err)
		}
		findings = append(findings, wrong...)
	}
	if d.Log != nil {
		torn, err := d.Log.Verify(ctx)
		if err != nil {
			return nil, fmt.Errorf("verify audit log: %w", err)
		}
		findings = append(findings, torn...)
	}
	if d.Workflows == nil {
		return findings, nil
	}
	odd, err := d.compare(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine workflows: %w", err)
	}
	return append(findings, odd...), nil
}

// compare finds the leases whose rows and workflow do not fit, twice with a pause, and returns those that it found both times.
func (d *Doctor) compare(ctx context.Context) ([]Finding, error) {
	first, err := d.misfits(ctx)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	pause := time.NewTimer(d.Settle)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-pause.C:
	}
	second, err := d.misfits(ctx)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for lease, found := range second {
		if first[lease] == found {
			findings = append(findings, Finding{Invariant: 6, Claim: Invariants()[5], What: lease.String(), Found: found})
		}
	}
	return findings, nil
}

func (d *Doctor) misfits(ctx context.Context) (map[ids.Lease]string, error) {
	running, err := d.Workflows.Running(ctx)
	if err != nil {
		return nil, err
	}
	live, err := d.Rows.Live(ctx, d.Clock.Now())
	if err != nil {
		return nil, err
	}
	odd := map[ids.Lease]string{}
	for _, lease := range live {
		if !running[lease] {
			odd[lease] = "it is under way and has no workflow"
		}
		delete(running, lease)
	}
	for lease := range running {
		odd[lease] = "its workflow runs, but it is not under way"
	}
	return odd, nil
}
