package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Faults are ways in which the manager or the fabric misbehaves, until they are taken away. The zero value is a good fabric.
type Faults struct {
	// FailOpen makes the next sweep make every port a full member of the default partition, as OpenSM does with a file that
	// it cannot read.
	FailOpen bool
	// HalfApply makes a sweep leave out every second port.
	HalfApply bool
	// HCAOnly makes a sweep leave out the switch ports.
	HCAOnly bool
	// Stale makes the manager answer with the tables of the moment when this fault began.
	Stale bool
	// Delay is how long a sweep takes.
	Delay time.Duration
	// Down makes the manager do and answer nothing; a set is still put in place for when it is back.
	Down bool
	// Unreachable ports do not answer, and a sweep does not reach their HCA's end.
	Unreachable map[protocol.GUID]bool
	// Posture overrides items.
	Posture map[string]protocol.Verdict
}

// Inject replaces the faults. Like the real one, the manager sweeps when a link comes up or it was started again, and then
// makes good what it could not do.
func (d *Driver) Inject(faults Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if faults.Stale && !d.faults.Stale {
		d.stale = maps.Clone(d.saved.Tables)
	}
	d.faults = faults
	d.faults.Unreachable = maps.Clone(faults.Unreachable)
	d.faults.Posture = maps.Clone(faults.Posture)
	if !d.faults.Down && !d.faults.FailOpen && !d.faults.Stale {
		d.sweepLocked(d.saved.State.Desired)
	}
}

func (d *Driver) currentFaults() Faults {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults
}

// OverwriteHCA sets an HCA port's table behind the manager's back.
func (d *Driver) OverwriteHCA(port protocol.GUID, keys ...protocol.PKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := d.saved.Tables[port]
	held.HCA = slices.Clone(keys)
	d.saved.Tables[port] = held
}

// OverwriteSwitch sets the table of the switch port that faces an HCA port.
func (d *Driver) OverwriteSwitch(port protocol.GUID, keys ...protocol.PKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := d.saved.Tables[port]
	held.Switch = slices.Clone(keys)
	d.saved.Tables[port] = held
}

// Held is what both ends of a port's link hold, whatever the faults make the manager say.
func (d *Driver) Held(port protocol.GUID) protocol.LinkState {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, held := d.places()[port], d.saved.Tables[port]
	return protocol.LinkState{
		GUID: port, SwitchGUID: at.SwitchGUID, SwitchPort: at.SwitchPort,
		HCA:    protocol.PortTable{GUID: port, Readable: true, Keys: slices.Clone(held.HCA), Source: source},
		Switch: protocol.PortTable{GUID: at.SwitchGUID, Readable: true, Keys: slices.Clone(held.Switch), Source: source},
	}
}

// Sweeps counts the sweeps since the start.
func (d *Driver) Sweeps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sweeps
}
