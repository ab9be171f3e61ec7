package inventory

import (
	"slices"

	"github.com/leasehold/leasehold/backend/fault"
)

// State is where a node is in its life.
type State string

// The states of a node.
const (
	Discovered  State = "discovered"  // enrolled, not accepted
	Verifying   State = "verifying"   // accepted; its parts, ports and health are being checked
	Available   State = "available"   // may be sold
	Maintenance State = "maintenance" // an admin took it off the market
	Quarantined State = "quarantined" // not to be trusted; has a reason and an exit
	Retired     State = "retired"     // gone; final
)

// States lists every state.
func States() []State {
	return []State{Discovered, Verifying, Available, Maintenance, Quarantined, Retired}
}

// Exit says how a quarantined node may come out.
type Exit string

// The exits from quarantine.
const (
	Retest Exit = "retest" // verify again
	Repair Exit = "repair" // into maintenance first
	Retire Exit = "retire" // never comes back
)

// exits is where each exit leads.
func exits() map[Exit][]State {
	return map[Exit][]State{
		Retest: {Verifying, Maintenance, Retired},
		Repair: {Maintenance, Retired},
		Retire: {Retired},
	}
}

// transitions is the whole truth about which state follows which. There is no way back to Available but through Verifying or
// Maintenance, and none out of Quarantined but through its exit.
func transitions() map[State][]State {
	return map[State][]State{
		Discovered:  {Verifying, Quarantined, Retired},
		Verifying:   {Available, Maintenance, Quarantined, Retired},
		Available:   {Maintenance, Quarantined},
		Maintenance: {Available, Verifying, Quarantined, Retired},
		Quarantined: {Verifying, Maintenance, Quarantined, Retired},
		Retired:     {},
	}
}

// providerTransitions are the steps that the node's provider may ask for. It may take its machine off the market to work on it, and
// have it tested again; whether a machine is trusted (accepted, out of quarantine, straight back to the market) is the operator's say.
func providerTransitions() map[State][]State {
	return map[State][]State{
		Verifying:   {Maintenance},
		Available:   {Maintenance},
		Maintenance: {Verifying},
	}
}

// Move is a step of a node's state. Reason and Exit belong to Quarantined, which needs both; a reason is kept for Maintenance too.
type Move struct {
	To     State
	Reason string
	Exit   Exit
	// ByProvider: the node's provider asks, and not the operator.
	ByProvider bool
}

// permit returns a Forbidden fault, code "operator-only", for a provider's step that only the operator may take.
func (m Move) permit(from State) error {
	if !m.ByProvider || slices.Contains(providerTransitions()[from], m.To) {
		return nil
	}
	return fault.New(fault.Forbidden, "operator-only",
		"only the operator moves a node from %s to %s; a provider may take its nodes into maintenance, and from there have them tested again (verifying)", from, m.To)
}

// MoveTo changes the node's state.
//
// It returns an Invalid fault, code "quarantine-reason", for a quarantine without a reason and an exit, and a Conflict fault, code
// "node-state", for a step that does not exist or that the quarantine's exit does not lead to.
func (n *Node) MoveTo(m Move) error {
	if !slices.Contains(transitions()[n.State], m.To) {
		return fault.New(fault.Conflict, "node-state", "a node that is %s cannot become %s", n.State, m.To)
	}
	if m.To == Quarantined && (m.Reason == "" || exits()[m.Exit] == nil) {
		return fault.New(fault.Invalid, "quarantine-reason", "a quarantine needs a reason and an exit: retest, repair or retire")
	}
	if n.State == Quarantined && m.To != Quarantined && !slices.Contains(exits()[n.StateExit], m.To) {
		return fault.New(fault.Conflict, "node-state", "the way out of this quarantine is to %s it", n.StateExit)
	}
	n.State, n.StateReason, n.StateExit = m.To, "", ""
	switch m.To {
	case Quarantined:
		n.StateReason, n.StateExit = m.Reason, m.Exit
	case Maintenance, Retired:
		n.StateReason = m.Reason
	case Discovered, Verifying, Available:
	}
	return nil
}
