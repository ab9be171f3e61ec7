package power

import (
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Kind is the kind of the operations that this package does. They are no agent's: whoever runs them speaks to the machine's BMC.
const Kind protocol.OperationKind = "power"

// Stage is whose system a machine runs, as far as we have seen to it.
type Stage string

// The stages.
const (
	StageUnknown Stage = "unknown" // on its way, or nobody has looked yet
	StageOff     Stage = "off"     // read back from its BMC
	StageService Stage = "service" // our own, whose agent has proved that it is of this very boot
	StageTenant  Stage = "tenant"  // the tenant's, from before the power was turned on for it until the power was seen to be off
)

// Goal is what an operation is to bring about.
type Goal string

// The goals. The last four are the tenant's wishes for a machine that is theirs.
const (
	GoalOff     Goal = "off"     // no power, whatever runs
	GoalService Goal = "service" // the service OS, its agent enrolled
	GoalTenant  Goal = "tenant"  // the tenant's own system from disk, which has phoned home
	GoalStart   Goal = "start"
	GoalStop    Goal = "stop" // asks the system first
	GoalReboot  Goal = "reboot"
	GoalCycle   Goal = "power_cycle"
)

// Goals lists every goal.
func Goals() []Goal {
	return []Goal{GoalOff, GoalService, GoalTenant, GoalStart, GoalStop, GoalReboot, GoalCycle}
}

// Wish reports whether the goal is one that a tenant may want of a machine of theirs.
func (g Goal) Wish() bool {
	switch g {
	case GoalStart, GoalStop, GoalReboot, GoalCycle:
		return true
	case GoalOff, GoalService, GoalTenant:
		return false
	}
	return false
}

// Order is an operation's spec.
type Order struct {
	Goal Goal `json:"goal"`
}

// Evidence is what was seen.
type Evidence struct {
	Goal  Goal  `json:"goal"`
	State State `json:"state"` // read back
	// Of a tenant's system, from when it phoned home:
	PhonedAt time.Time `json:"phoned_at,omitzero"`
	Host     string    `json:"host,omitempty"` // where to log in
	Port     int       `json:"port,omitempty"`
	HostKeys []string  `json:"host_keys,omitempty"` // authorized_keys form
	// Events are the newest of the BMC's log, when it failed.
	Events []Event `json:"events,omitempty"`
}

// Machine is a node with its BMC.
type Machine struct {
	Node ids.Node
	Name string // the node's; not written here
	BMC  Address
	MACs []string // of the network cards that it boots from, in lower case
	// AccessHost and AccessPort are where its tenants log in; "": where its system phones home from, on port 22.
	AccessHost string
	AccessPort int
	Stage      Stage
	StageSince time.Time
	CreatedAt  time.Time
}

// Address is where a BMC is, and how we know each other.
type Address struct {
	URL    string
	User   string
	Secret []byte // the password, sealed
	Pin    []byte // SHA-256 of its certificate; empty: the system's authorities decide
	System string // the machine's path on it; "": its only one
}

// Purpose says what a ticket is good for.
type Purpose string

// The purposes.
const (
	ForService Purpose = "service" // to enrol an agent in the service OS of one boot
	ForTenant  Purpose = "tenant"  // to phone home, once, from the tenant's system
)

// Ticket is a right that exists because one boot of one machine is under way. Only the token's SHA-256 is kept.
type Ticket struct {
	ID         ids.Operation // the operation that it belongs to, or for phoning home one of its own
	Node       ids.Node
	Purpose    Purpose
	Allocation ids.Allocation // of tenants' only
	Epoch      int64
	Hash       []byte // nil: no token was made yet
	ExpiresAt  time.Time
	CreatedAt  time.Time
	UsedAt     time.Time
	UsedBy     []byte // the agent's key, for service
	Call       *Call  // for tenants'
}

// Call is a tenant's system that phones home.
type Call struct {
	From     string   `json:"from"` // address
	Hostname string   `json:"hostname"`
	HostKeys []string `json:"host_keys"`
}
