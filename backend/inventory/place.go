package inventory

import (
	"context"

	"github.com/leasehold/leasehold/backend/ids"
)

// SiteOf returns the node's site. It returns a NotFound fault. For enrolment, within the transaction that ctx carries.
func (s *Service) SiteOf(ctx context.Context, id ids.Node) (ids.Site, error) {
	node, err := s.nodes.Node(ctx, id)
	return node.Site, err
}

// NodeID finds the site's node of that name, or makes it: a machine may be known by its BMC before anything ran on it. Within the
// transaction that ctx carries.
func (s *Service) NodeID(ctx context.Context, site ids.Site, name string) (ids.Node, error) {
	node, err := s.AddNode(ctx, site, name, "")
	return node.ID, err
}
