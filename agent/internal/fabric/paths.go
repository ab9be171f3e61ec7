package fabric

import (
	"context"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// maxPathSubjects bounds how many ports paths are asked for in one observation: the tables are the proof, paths a cross-check.
const maxPathSubjects = 8

// PathAsker is a driver that may not always be told of other ports' paths. A manager tells nobody of paths between ports that the asker itself
// cannot reach: after a fail-over a driver beside the manager that was is a stranger like any other.
type PathAsker interface {
	MayAskPaths(ctx context.Context) bool
}

// checkPaths asks the manager for paths that must not be there, and for one that must, so that a query which finds nothing for
// another reason cannot pass as isolation. One port per partition is asked for, and ports that have just left one.
func (c HandlerConfig) checkPaths(ctx context.Context, before, after Desired, links []protocol.LinkState) []protocol.PathCheck {
	checks := make([]protocol.PathCheck, 0)
	controller, err := c.Driver.Controller(ctx)
	if err != nil || controller.SMGUID == 0 {
		return checks
	}
	if asker, picky := c.Driver.(PathAsker); picky && !asker.MayAskPaths(ctx) {
		return checks // whatever it were told would say nothing
	}
	silent := false // a manager that did not say once is not waited for at every question
	ask := func(from, to protocol.GUID, want protocol.Verdict) {
		check := protocol.PathCheck{From: from, To: to, Want: want, Found: protocol.Unknown}
		if !silent {
			check.Found = c.Driver.HasPath(ctx, from, to)
			silent = check.Found == protocol.Unknown
		}
		checks = append(checks, check)
	}
	picker := newPathPicker(before, after, links)
	picker.leaveOut(controller.SMGUID)
	for _, subject := range picker.subjects() {
		ask(subject, picker.friend(subject, controller.SMGUID), protocol.True)
		if stranger, ok := picker.stranger(subject); ok {
			ask(subject, stranger, protocol.False)
		}
	}
	return checks
}

// pathPicker picks the ends of path queries.
type pathPicker struct {
	before, after map[protocol.GUID]protocol.PKey
	answering     []protocol.GUID // ports that were read
	tenants       []protocol.GUID // all members, read or not
}

func newPathPicker(before, after Desired, links []protocol.LinkState) pathPicker {
	p := pathPicker{before: before.KeyOf(), after: after.KeyOf()}
	for _, link := range links {
		if link.HCA.Readable {
			p.answering = append(p.answering, link.GUID)
		}
	}
	for _, partition := range after.Partitions {
		p.tenants = append(p.tenants, partition.Members...)
	}
	return p
}

// leaveOut takes out a port that everybody reaches: the manager's, which is among the ports when a standby has taken over.
func (p *pathPicker) leaveOut(manager protocol.GUID) {
	p.answering = slices.DeleteFunc(p.answering, func(port protocol.GUID) bool { return port == manager })
}

// subjects are, of the ports that answer, one per partition and then ports without one.
func (p pathPicker) subjects() []protocol.GUID {
	var members, others []protocol.GUID
	taken := map[protocol.PKey]bool{}
	for _, port := range p.answering {
		switch key := p.after[port]; {
		case key == 0:
			others = append(others, port)
		case !taken[key]:
			taken[key] = true
			members = append(members, port)
		}
	}
	subjects := slices.Concat(members, others)
	return subjects[:min(len(subjects), maxPathSubjects)]
}

// friend is a port that the subject must reach: another member that answers, or the manager, which everybody reaches.
func (p pathPicker) friend(subject, manager protocol.GUID) protocol.GUID {
	key := p.after[subject]
	for _, port := range p.answering {
		if key != 0 && port != subject && p.after[port] == key {
			return port
		}
	}
	return manager
}

// stranger is a port that the subject must not reach: of all, one that is still in the partition which the subject has left;
// then another tenant's; then an idle one.
func (p pathPicker) stranger(subject protocol.GUID) (protocol.GUID, bool) {
	var tenant, other protocol.GUID
	for _, port := range slices.Concat(p.answering, p.tenants) {
		key := p.after[port]
		switch {
		case port == subject, key != 0 && key == p.after[subject]:
		case key != 0 && key == p.before[subject]:
			return port, true
		case key != 0 && tenant == 0:
			tenant = port
		case other == 0:
			other = port
		}
	}
	if tenant != 0 {
		other = tenant
	}
	return other, other != 0
}
