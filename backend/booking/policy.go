package booking

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Policy is what an organization lets its own people and programs book. It holds at every door: for a quote, for its booking, which may come
// after a change of the policy, and for an extension, which counts with all that came before it. The zero value lets everything.
type Policy struct {
	Types         *[]ids.Instance // nil: all
	Sites         *[]ids.Site     // nil: all
	MaxDuration   time.Duration   // of a lease with its extensions; 0: no limit
	MaxTotalMinor *int64          // worst case of a lease with its extensions, tax included; nil: no limit
}

// permit answers Forbidden, code "organization-policy", with the rule in its facts.
func (p Policy) permit(t ids.Instance, site ids.Site, duration time.Duration, total money.Amount) error {
	switch {
	case p.Types != nil && !slices.Contains(*p.Types, t):
		return errPolicy("instance_types", "your organization does not let that instance type be leased")
	case p.Sites != nil && !slices.Contains(*p.Sites, site):
		return errPolicy("sites", "your organization does not let anything be leased at that site")
	case p.MaxDuration > 0 && duration > p.MaxDuration:
		return errPolicy("max_duration_seconds", "your organization lets a lease last for %s at most", p.MaxDuration)
	case p.MaxTotalMinor != nil && total.Minor > *p.MaxTotalMinor:
		return errPolicy("max_lease_minor", "your organization lets a lease cost %s at most", money.Of(*p.MaxTotalMinor, total.Currency))
	default:
		return nil
	}
}

func errPolicy(rule, format string, args ...any) error {
	return fault.New(fault.Forbidden, "organization-policy", format, args...).With("rule", rule)
}

// filter leaves the options at sites that are allowed. When the policy is all that stands between the wish and an option, it says so.
func (p Policy) filter(options []Option) ([]Option, error) {
	if p.Sites == nil || len(options) == 0 {
		return options, nil
	}
	allowed := slices.DeleteFunc(slices.Clone(options), func(o Option) bool { return !slices.Contains(*p.Sites, o.Placement.Site) })
	if len(allowed) == 0 {
		return nil, errPolicy("sites", "your organization does not let anything be leased at the sites that have it")
	}
	return allowed, nil
}
