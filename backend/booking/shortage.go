package booking

import (
	"context"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
)

// shortage is the Conflict fault, code "no-capacity", of a wish that nothing fulfils, in words that tell what would help: more
// patience and fewer machines help when machines are taken, and neither does when the market has none of the kind. Its facts are how
// many instances a site has at most, and how many of those are free now.
func (s *Service) shortage(ctx context.Context, w Wish) error {
	t, err := s.Catalog.TypeByName(ctx, w.InstanceType)
	if err != nil {
		return err
	}
	counts, err := s.FreeNow(ctx, w.InstanceType)
	if err != nil {
		return err
	}
	var most Count
	for site, c := range counts {
		if w.Site == "" || w.Site == site {
			most = Count{Total: max(most.Total, c.Total), Free: max(most.Free, c.Free)}
		}
	}
	return newShortage(t, w, most)
}

func newShortage(t catalog.InstanceType, w Wish, most Count) error {
	where := "at any one site"
	if w.Site != "" {
		where = "at " + w.Site
	}
	refusal := func(format string, args ...any) error {
		return fault.New(fault.Conflict, "no-capacity", format, args...).With("total_instances", most.Total).With("free_now", most.Free)
	}
	switch {
	case most.Total == 0 && t.Mode == catalog.Shared:
		return refusal("no machine %s is shared out for %s at the moment, so that there is none at any time; choose another type", where, t.Name)
	case most.Total == 0:
		return refusal("no machine %s is on the market as %s at the moment; choose another type or site", where, t.Name)
	case w.Instances > most.Total:
		return refusal("there are at most %d × %s %s; ask for fewer", most.Total, t.Name, where)
	case w.Topology == Anywhere || w.Topology == "":
		return refusal("nothing that fits is free in that window; try another time or fewer instances")
	default:
		return refusal("nothing that fits is free in that window; try another time, fewer instances, or another topology than %s", w.Topology)
	}
}
