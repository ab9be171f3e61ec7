package lease

import "github.com/leasehold/leasehold/backend/ids"

// Filter narrows a list of leases, which is ordered by creation, latest first. Zero fields do not narrow.
type Filter struct {
	ID      ids.Lease
	Project ids.Project
	States  []State
	After   ids.Lease // the last one of the page before
	Limit   int       // 0: no limit
}
