package node

import (
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/protocol"
)

// TenancyState is how far a tenancy is.
type TenancyState string

// The states of a tenancy. There is none for "wiped": a tenancy whose wipe was shown to be clean is forgotten.
const (
	Preparing TenancyState = "preparing"
	Prepared  TenancyState = "prepared"
	InUse     TenancyState = "in_use"
)

// Tenancy is a lease's hold on slots of this node, from before its preparation touches anything until a wipe has shown that
// nothing of it is left.
type Tenancy struct {
	LeaseID    string          `json:"lease_id"`
	Slots      protocol.Slots  `json:"slots"`
	State      TenancyState    `json:"state"`
	Hostname   string          `json:"hostname"`
	Mode       string          `json:"mode"`
	MIGProfile string          `json:"mig_profile,omitempty"`
	GPUs       []Share         `json:"gpus"`
	Ports      []protocol.GUID `json:"ports"`
}

// Place names the tenancy's share of this node: a lease may have several here.
func (t Tenancy) Place() string { return placeOf(t.LeaseID, t.Slots) }

func placeOf(lease string, slots protocol.Slots) string {
	return fmt.Sprintf("%s/%d-%d", lease, slots.From, slots.To)
}

// Share is the part of a GPU that a tenancy has: memory slices [From, To) of 8.
type Share struct {
	UUID   string         `json:"uuid"`
	Slices protocol.Slots `json:"slices"`
	// Instance is the UUID of the MIG instance that was made of the slices, "" for a whole GPU.
	Instance string `json:"instance,omitempty"`
}

func (n *Node) load() error {
	_, err := durable.ReadJSON(n.file(), &n.tenancies)
	return err
}

// Tenancies returns all that are not wiped yet.
func (n *Node) Tenancies() []Tenancy {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.tenancies)
}

// Tenancy returns the tenancy of a place.
func (n *Node) Tenancy(place string) (Tenancy, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.tenancies {
		if t.Place() == place {
			return t, true
		}
	}
	return Tenancy{}, false
}

func (n *Node) rented() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.tenancies, func(t Tenancy) bool { return t.State == InUse })
}

// claim makes it durable that t's lease is on its slots, unless another's data may lie there.
func (n *Node) claim(t Tenancy) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.tenancies {
		if other.Slots.Overlaps(t.Slots) && (other.LeaseID != t.LeaseID || other.Slots != t.Slots) {
			return refuse(CodeNotWiped, "slots [%d, %d) still are lease %s's and not wiped", other.Slots.From, other.Slots.To, other.LeaseID)
		}
	}
	return n.put(t)
}

// put replaces the tenancy of the same slots, durably. The caller holds the lock.
func (n *Node) put(t Tenancy) error {
	kept := slices.DeleteFunc(slices.Clone(n.tenancies), func(o Tenancy) bool { return o.Slots == t.Slots })
	return n.keep(append(kept, t))
}

func (n *Node) keep(tenancies []Tenancy) error {
	if err := durable.WriteJSON(n.file(), tenancies, 0o600); err != nil {
		return fmt.Errorf("keep tenancies: %w", err)
	}
	n.tenancies = tenancies
	return nil
}

func (n *Node) moveTo(t Tenancy, state TenancyState) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	t.State = state
	return n.put(t)
}

// forget drops the tenancies within the slots: they are shown to be clean.
func (n *Node) forget(slots protocol.Slots) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keep(slices.DeleteFunc(slices.Clone(n.tenancies), func(t Tenancy) bool {
		return slots.From <= t.Slots.From && t.Slots.To <= slots.To
	}))
}

// on returns the tenancies that touch the slots.
func (n *Node) on(slots protocol.Slots) []Tenancy {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.tenancies), func(t Tenancy) bool { return !t.Slots.Overlaps(slots) })
}
