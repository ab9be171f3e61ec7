package billing

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/metering"
)

// auditPage is how many leases are looked up at a time.
const auditPage = 500

// Audit rates every settled lease again from its facts and returns those whose lines say something else. Leases that rules before the
// present ones have rated are left out: their lines followed those.
func (s *Service) Audit(ctx context.Context) ([]Breach, error) {
	var breaches []Breach
	var after ids.Lease
	for {
		var page []ids.Lease
		err := s.within(ctx, "list settled leases", func(ctx context.Context) (err error) {
			page, err = s.meter.Settled(ctx, metering.Version, after, auditPage)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, id := range page {
			breach, err := s.auditLease(ctx, id)
			if err != nil {
				return nil, err
			}
			if breach != "" {
				breaches = append(breaches, Breach{Claim: "a settled lease was charged what its facts cost", What: id.String(), Found: breach})
			}
		}
		if len(page) < auditPage {
			return breaches, nil
		}
		after = page[len(page)-1]
	}
}

// auditLease says what is wrong with the lease's lines. A log that cannot be rated is a breach, not a failure of the audit.
func (s *Service) auditLease(ctx context.Context, id ids.Lease) (string, error) {
	var found string
	err := s.within(ctx, "audit lease", func(ctx context.Context) error {
		facts, lines, err := s.state(ctx, id, false)
		if err != nil {
			return err
		}
		if found, err = metering.Audit(facts, plain(lines)); err != nil {
			found = fmt.Sprintf("its facts cannot be rated: %s", err)
		}
		return nil
	})
	return found, err
}
