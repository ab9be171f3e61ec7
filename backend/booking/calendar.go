package booking

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// MaxCalendarSteps bounds a calendar.
const MaxCalendarSteps = 1_000

// CalendarQuery asks how many instances are free, step by step.
type CalendarQuery struct {
	InstanceType string
	Site         string // "": all
	From, To     time.Time
	Step         time.Duration
}

// SiteCalendar is one site's row of the calendar. Free[i] is how many instances are free throughout [From + i·Step, From + (i+1)·Step).
type SiteCalendar struct {
	Site  string
	Total int
	Free  []int
}

// Calendar counts free instances per time step and site. It looks at the step itself: what a lease needs before and after it (lead and
// turnaround) is search's business.
//
// It returns an Invalid fault for a span without steps or with more than MaxCalendarSteps.
func (s *Service) Calendar(ctx context.Context, q CalendarQuery) ([]SiteCalendar, error) {
	var rows []SiteCalendar
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		rows, err = s.calendar(ctx, q)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("calendar: %w", err)
	}
	return rows, nil
}

func (s *Service) calendar(ctx context.Context, q CalendarQuery) ([]SiteCalendar, error) {
	steps := 0
	if q.Step > 0 && q.From.Before(q.To) {
		steps = int((q.To.Sub(q.From) + q.Step - 1) / q.Step)
	}
	if steps < 1 || steps > MaxCalendarSteps {
		return nil, fault.New(fault.Invalid, "invalid-calendar", "a calendar has between 1 and %d steps", MaxCalendarSteps).At("/to", "must be after from, and not too far")
	}
	t, err := s.Catalog.TypeByName(ctx, q.InstanceType)
	if err != nil {
		return nil, err
	}
	names, err := s.Market.SiteNames(ctx)
	if err != nil {
		return nil, err
	}
	site, err := siteNamed(names, q.Site)
	if err != nil {
		return nil, err
	}
	pools, err := s.Market.Pools(ctx, PoolQuery{Type: t, Site: site, Time: lease.Window{Start: q.From, End: q.To}, Now: s.Clock.Now()})
	if err != nil {
		return nil, err
	}
	bySite := map[ids.Site]*SiteCalendar{}
	for _, pool := range pools {
		row := bySite[pool.Site]
		if row == nil {
			row = &SiteCalendar{Site: pool.SiteName, Free: make([]int, steps)}
			bySite[pool.Site] = row
		}
		idle := pool
		idle.Machines = make([]Machine, len(pool.Machines))
		for i, m := range pool.Machines {
			m.Busy = nil
			idle.Machines[i] = m
		}
		row.Total += Room(Demand{Type: t, Instances: 1}, idle)
		for i := range steps {
			start := q.From.Add(time.Duration(i) * q.Step)
			row.Free[i] += Room(Demand{Type: t, Instances: 1, Occupied: lease.Window{Start: start, End: start.Add(q.Step)}}, pool)
		}
	}
	rows := make([]SiteCalendar, 0, len(bySite))
	for _, row := range bySite {
		rows = append(rows, *row)
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].Site < rows[j].Site })
	return rows, nil
}

// Count is how much of a type a site has, and has free now.
type Count struct{ Total, Free int }

// FreeNow counts instances of the type by site: all, and those that are free at this instant.
func (s *Service) FreeNow(ctx context.Context, instanceType string) (map[string]Count, error) {
	now := s.Clock.Now()
	rows, err := s.Calendar(ctx, CalendarQuery{InstanceType: instanceType, From: now, To: now.Add(time.Second), Step: time.Second})
	if err != nil {
		return nil, err
	}
	counts := make(map[string]Count, len(rows))
	for _, r := range rows {
		counts[r.Site] = Count{Total: r.Total, Free: r.Free[0]}
	}
	return counts, nil
}
