package lease

import (
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// EventType names what happened. The log is the bill's only source: a type that money depends on is never renamed.
type EventType string

// The types of event. Data, where there is any, is named behind.
const (
	EventBooked          EventType = "lease.booked"
	EventExtended        EventType = "lease.extended"              // {"segment": 2, "end": "…"}
	EventCancelAsked     EventType = "lease.cancel_asked"          // {"refund_minor": …}
	EventCancelled       EventType = "lease.cancelled"             //
	EventTerminateAsked  EventType = "lease.terminate_asked"       // {"end": "…"}
	EventProvisioning    EventType = "lease.provisioning"          //
	EventNodePrepared    EventType = "node.prepared"               // {"allocation": …, "node": …}
	EventNodeFailed      EventType = "node.failed"                 // {"allocation": …, "code": …, "detail": …}
	EventNodeReplaced    EventType = "node.replaced"               // {"allocation": …, "by": …}
	EventIsolated        EventType = "isolation.verified"          // {"attestation": …}
	EventIsolationFailed EventType = "isolation.not_verified"      // {"detail": …}
	EventAttestAsked     EventType = "isolation.attestation_asked" // {"request": "1"}; requests are numbered from 1
	EventAttested        EventType = "isolation.attested"          // {"request": "1", "attestation": …, "verdict": …}
	EventActive          EventType = "lease.active"                // the clock starts
	EventOutageBegan     EventType = "node.outage_began"           // {"allocation": …, "evidence": …}
	EventOutageEnded     EventType = "node.outage_ended"           // {"allocation": …}
	EventNotice          EventType = "lease.notice"                // {"remaining_seconds": …}
	EventReleasing       EventType = "lease.releasing"             // {"outcome": …}; the clock stops
	EventRevoked         EventType = "access.revoked"              //
	EventPartitionClear  EventType = "isolation.clear"             //
	EventNodeWiped       EventType = "node.wiped"                  // {"allocation": …, "certificate": …}
	EventNodeQuarantined EventType = "node.quarantined"            // {"allocation": …, "reason": …}
	EventNodeWrittenOff  EventType = "node.written_off"            // {"allocation": …, "reason": …}: released without a wipe, its machine is retired
	EventCharged         EventType = "billing.charged"             // {"amount_minor": …, "until": …}
	EventClosed          EventType = "lease.closed"                // {"invoice": …}
)

// Event is one line of the log. Seq is 1, 2, 3… without gaps, drawn under the lease row's lock.
type Event struct {
	Lease ids.Lease
	Org   ids.Org
	Seq   int64
	Type  EventType
	At    time.Time // the control plane's clock
	Actor string
	Data  map[string]any
}
