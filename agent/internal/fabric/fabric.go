// Package fabric isolates tenants on a subnet: it applies the partitions that the control plane wants through a driver, reads
// back what the ports really hold, and says so in evidence that the agent signs. README.md explains the contract in a page.
package fabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Driver is one kind of subnet manager. It is safe for concurrent use. What it says about tables it has read from the ports;
// what it could not read is unknown (Readable false), never clear.
type Driver interface {
	// Apply makes the whole desired set true and returns when the ports that it changes have it at both ends, or when that
	// took too long (Applied says which did not). One Apply is under way at a time; of those that wait the newest is done
	// and the others fail with CodeSuperseded. Nothing reaches the manager when it fails with CodeStaleEpoch,
	// CodeInvalidPartitions, CodeUnknownPort, CodeShrinkRefused or CodeForeignConfiguration. With
	// CodeManagerUnavailable the set is in place and the manager has not taken it yet.
	Apply(ctx context.Context, desired Desired, epoch int64) (Applied, error)
	// Current returns the set that was last put in place, with its epoch; it survives a restart.
	Current(ctx context.Context) (State, error)
	// Observe reads both ends of the ports' links, in the order asked for. A port that cannot be read has its own entry.
	Observe(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error)
	// Posture says how hardened the fabric is. Items that cannot be known are unknown.
	Posture(ctx context.Context) ([]protocol.PostureCheck, error)
	// Topology returns the graph, with every HCA port that is or was there, but the manager's own.
	Topology(ctx context.Context) (protocol.Topology, error)
	// Controller says what manages the subnet.
	Controller(ctx context.Context) (protocol.Controller, error)
	// ReadPort reads an HCA port's own table, as its host would.
	ReadPort(ctx context.Context, port protocol.GUID) (protocol.PortTable, error)
	// HasPath asks the manager whether the two ports can reach each other. Unknown when it does not say.
	HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict
}

// Codes of refusals.
const (
	CodeStaleEpoch           = "stale-epoch"             // a newer set was applied already; nothing was done
	CodeSuperseded           = "superseded"              // a newer set arrived while this one waited; nothing was done
	CodeInvalidSpec          = protocol.FaultInvalidSpec // the operation could not be understood
	CodeInvalidPartitions    = "invalid-partitions"      // the set breaks a rule
	CodeUnknownPort          = "unknown-port"            // a member that was never seen on this fabric
	CodeShrinkRefused        = "shrink-refused"          // too many members would go at once
	CodeForeignConfiguration = "foreign-configuration"   // the manager's configuration is not ours and could not be kept
	CodeManagerUnavailable   = "manager-unavailable"
	CodeNotConverged         = "not-converged"     // some port does not have what it should, or could not be read
	CodePathCheckFailed      = "path-check-failed" // the tables are right and the manager's paths are not
)

// Range is an inclusive range of partition numbers, less those that are reserved to somebody else.
type Range struct {
	Low      protocol.PKey   `json:"low"`
	High     protocol.PKey   `json:"high"`
	Reserved []protocol.PKey `json:"reserved,omitempty"`
}

// Contains reports whether the key's partition is in the range, whatever its membership bit.
func (r Range) Contains(key protocol.PKey) bool {
	return key.Base() >= r.Low && key.Base() <= r.High && !slices.Contains(r.Reserved, key.Base())
}

// Desired is the whole set of partitions in the managed range.
type Desired struct {
	Partitions []protocol.Partition `json:"partitions"`
	Managed    Range                `json:"managed"`
	// AllowShrink lifts the shrink guard. It is a property of the request, not of the set.
	AllowShrink bool `json:"-"`
	// Repair lists ports whose tables the manager may wrongly believe to be right. A driver that can has those of them written anew
	// that answer and do not hold what the set says. Also a property of the request.
	Repair []protocol.GUID `json:"-"`
}

// State is a desired set in place.
type State struct {
	Desired Desired `json:"desired"`
	Epoch   int64   `json:"epoch"`
}

// Applied is what Apply did.
type Applied struct {
	// Changed lists the ports whose membership this epoch changed, sorted; the same again when the same epoch is repeated.
	Changed []protocol.GUID
	// Unsettled lists those of them that do not have both tables right.
	Unsettled []protocol.GUID
	// Sweeps counts how often the manager was signalled.
	Sweeps int
	// Repaired lists the ports of the request's that were written anew.
	Repaired []protocol.GUID
}

// Normal returns the set in its one written order: partitions by key, members by GUID, partitions without members left out.
func (d Desired) Normal() Desired {
	partitions := make([]protocol.Partition, 0, len(d.Partitions))
	for _, p := range d.Partitions {
		if len(p.Members) == 0 {
			continue
		}
		p.Members = slices.Sorted(slices.Values(p.Members))
		partitions = append(partitions, p)
	}
	slices.SortStableFunc(partitions, func(a, b protocol.Partition) int { return cmp.Compare(a.PKey, b.PKey) })
	d.Partitions = partitions
	return d
}

// KeyOf returns the partition of each member.
func (d Desired) KeyOf() map[protocol.GUID]protocol.PKey {
	keys := map[protocol.GUID]protocol.PKey{}
	for _, p := range d.Partitions {
		for _, member := range p.Members {
			keys[member] = p.PKey
		}
	}
	return keys
}

// Changes lists the ports whose partition differs between the two sets, sorted.
func Changes(before, after Desired) []protocol.GUID {
	was, is := before.KeyOf(), after.KeyOf()
	changed := make([]protocol.GUID, 0)
	for port, key := range is {
		if was[port] != key {
			changed = append(changed, port)
		}
	}
	for port := range was {
		if _, stays := is[port]; !stays {
			changed = append(changed, port)
		}
	}
	slices.Sort(changed)
	return changed
}

// Inventory is the fabric agent's report.
func Inventory(ctx context.Context, driver Driver) (protocol.FabricInventory, error) {
	controller, err := driver.Controller(ctx)
	if err != nil {
		return protocol.FabricInventory{}, fmt.Errorf("take fabric inventory: %w", err)
	}
	topology, err := driver.Topology(ctx)
	if err != nil {
		return protocol.FabricInventory{}, fmt.Errorf("take fabric inventory: %w", err)
	}
	posture, err := driver.Posture(ctx)
	if err != nil {
		return protocol.FabricInventory{}, fmt.Errorf("take fabric inventory: %w", err)
	}
	return protocol.FabricInventory{Controller: controller, Topology: topology, Posture: posture}, nil
}

// refuse builds a refusal that no retry of the same operation can overcome.
func refuse(code, format string, args ...any) error {
	return &operation.Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}
