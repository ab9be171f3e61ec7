// Package inventory has what there is: sites, fabrics with their switches and links, and nodes with their parts. It takes what
// agents report, and decides what of it may be sold: first reports are recognised, later ones compared, and a difference is an
// event for an admin, never silently accepted.
package inventory

import (
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Site is a data centre of a provider.
type Site struct {
	ID         ids.Site
	Provider   ids.Org
	Name       string
	Region     string
	Country    string // ISO 3166-1 alpha-2
	TimeZone   string
	AutoAccept bool // a lab's wish: what is recognised goes on sale without an admin's click
	Version    int64
	CreatedAt  time.Time
}

// Fabric is one InfiniBand subnet (or one EVPN domain).
type Fabric struct {
	ID                ids.Fabric
	Site              ids.Site
	Name              string
	Kind              string
	Driver            string
	ControllerVersion string
	Epoch             int64
	MaxPKeysPerPort   int
	Posture           []protocol.PostureCheck
	PlannedPods       bool // its manager reports pods of its own plan; otherwise they are worked out from the graph
	Spares            int  // healthy nodes that bookings leave free, for replacement within leases
	ObservedAt        time.Time
	CreatedAt         time.Time
}

// Switch is one switch of a fabric. Level counts from the hosts: 1 leaf, 2 spine, 3 core; 0 unknown.
type Switch struct {
	ID    ids.Switch
	GUID  protocol.GUID
	Name  string
	Level int
	Ports int
	Pod   string
}

// Link joins ports of two switches.
type Link struct {
	FromGUID, ToGUID protocol.GUID
	FromName, ToName string
	FromPort, ToPort int
	RateGbps         int
}

// Node is a machine.
type Node struct {
	ID           ids.Node
	Site         ids.Site
	Fabric       ids.Fabric // zero: no InfiniBand
	Name         string
	Serial       string // not a key: vendors repeat serials
	Manufacturer string
	Product      string
	Hardware     string // the key that instance types name; "" until it was recognised
	Mode         catalog.Mode
	State        State
	StateReason  string
	StateExit    Exit
	Slots        int // 8 a bay
	Pod          string
	Leaf         ids.Switch // of its first rail; zero: not seen on a fabric
	HCAPerGPU    bool       // each GPU bay has an HCA port of its own
	NVLinkDomain string
	BMCAddress   string
	CPUCores     int
	MemoryBytes  int64
	Accepted     *protocol.NodeInventory // nil before the first report
	Reported     *protocol.NodeInventory // the latest report, when it differs from the accepted one
	Version      int64
	CreatedAt    time.Time
}

// GPU is an accelerator in its bay. The bay is fixed at acceptance, by PCI address: NVML's indices shift when a GPU drops.
type GPU struct {
	ID          ids.GPU
	Bay         int
	UUID        string
	Vendor      string
	Model       string
	Serial      string
	MemoryBytes int64
	PCIAddress  string
	NUMANode    int // −1: unknown
	MIGCapable  bool
}

// Port is an InfiniBand port of a node.
type Port struct {
	ID         ids.HCAPort
	Fabric     ids.Fabric // zero: no fabric's manager has seen it
	Bay        int        // the GPU bay that it belongs to 1:1; NoBay: it belongs to the whole node
	Rail       int
	Device     string
	Number     int
	NodeGUID   protocol.GUID
	GUID       protocol.GUID
	RateGbps   int
	Switch     ids.Switch
	SwitchName string // for people; "" when no switch is known
	SwitchPort int
}

// NoBay says that a port belongs to no single GPU.
const NoBay = -1

// Condition is something the matter with a node, as its agent reports it.
type Condition struct {
	Name     string
	Device   string
	Class    protocol.ConditionClass
	Onset    time.Time
	Evidence string
	Exit     string
}

// ChangeState is what became of a reported difference.
type ChangeState string

// The states of a change.
const (
	Pending        ChangeState = "pending"
	ChangeAccepted ChangeState = "accepted"
	Rejected       ChangeState = "rejected"
	Withdrawn      ChangeState = "withdrawn" // a later report agreed with what was accepted: nobody had to decide
)

// Change is a difference between a report and what was accepted.
type Change struct {
	What       string // e.g. "gpu 0000:1b:00.0 uuid"
	Before     string
	After      string
	State      ChangeState
	ObservedAt time.Time
}

// Held is capacity of a node that something holds, for an admin's eyes.
type Held struct {
	ID       ids.Allocation
	Purpose  string
	Lease    ids.Lease // zero for maintenance and checkouts
	State    lease.AllocationState
	Reason   string
	Slots    lease.Slots
	Occupied lease.Window
}
