package httpapi

import (
	"context"
	"regexp"
	"slices"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/overview"
	"github.com/leasehold/leasehold/backend/tenant"
)

// On the admin's routes a provider's people see what stands on their own organization's sites, and nothing of who rents it: they look
// after machines, and a tenant is none of their business. Another provider's id is not found.

// providerOf is the provider whose sites the actor is kept to; zero for the operator's people, who see everything. Whoever is not
// the operator's is kept to what their own organization owns, so that a customer who came here by a mistake of ours would see nothing.
func providerOf(ctx context.Context) ids.Org {
	actor, ok := tenant.ActorFrom(ctx)
	if !ok || actor.OrgKind == tenant.Operator {
		return ids.Org{}
	}
	return actor.Org
}

// sites are the sites that the actor may see.
func (a Admin) sites(ctx context.Context) ([]inventory.Site, error) {
	all, err := a.Inventory.Sites(ctx)
	if err != nil {
		return nil, err
	}
	provider := providerOf(ctx)
	return slices.DeleteFunc(all, func(s inventory.Site) bool { return !provider.IsZero() && s.Provider != provider }), nil
}

// siteNames are the names of the sites that the actor may see.
func (a Admin) siteNames(ctx context.Context) (map[ids.Site]string, error) {
	sites, err := a.sites(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[ids.Site]string, len(sites))
	for _, s := range sites {
		names[s.ID] = s.Name
	}
	return names, nil
}

// node is everything about a node that the actor may see; else a NotFound fault.
func (a Admin) node(ctx context.Context, id ids.Node) (inventory.Detail, error) {
	detail, err := a.Inventory.Node(ctx, id)
	if err != nil {
		return inventory.Detail{}, err
	}
	names, err := a.siteNames(ctx)
	if err != nil {
		return inventory.Detail{}, err
	}
	if names[detail.Node.Site] == "" {
		return inventory.Detail{}, fault.New(fault.NotFound, "node-not-found", "there is no such node")
	}
	return detail, nil
}

// hideTenants takes out of a node's description what tells one tenant from another.
func hideTenants(d *api.NodeDetail) {
	hideTenantsOfNode(&d.Node)
	for i := range d.Allocations {
		d.Allocations[i].LeaseID, d.Allocations[i].Reason = nil, withoutIDs(d.Allocations[i].Reason)
	}
	for i := range d.Operations {
		d.Operations[i].LeaseID = nil
		if words := d.Operations[i].Fault; words != nil {
			d.Operations[i].Fault = orNil(withoutIDs(*words))
		}
	}
}

func hideTenantsOfNode(n *api.Node) { n.StateReason = withoutIDs(n.StateReason) }

// withoutIDs blanks ids of leases, people and organizations in words that an agent or the platform wrote about trouble.
func withoutIDs(words string) string {
	return regexp.MustCompile(`\b(lease|org|user|project|key|sshkey|quote)_[0-9a-z]{26}\b`).ReplaceAllString(words, "${1}_…")
}

func newForeignPartitionView(p overview.Partition) api.FabricPartition {
	view := newFabricPartitionView(p)
	view.LeaseID = nil
	return view
}
