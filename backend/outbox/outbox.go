// Package outbox names the effects that follow a commit: a transaction that needs one writes a message, and somebody delivers it
// at least once. There is no order between messages.
package outbox

import "github.com/leasehold/leasehold/backend/ids"

// The topics, with what a message's key is.
const (
	LeaseNudge  = "lease.nudge"  // a lease's id: its workflow looks at the rows again, and is started if it must be
	FabricNudge = "fabric.nudge" // a fabric's id: likewise its isolation workflow
	NodeNudge   = "node.nudge"   // a node's id: likewise its own workflow
	Notify      = "notify"       // an organization's id, or "operator": something that people are to be told
)

// Operator is the key of messages for the operator's people.
const Operator = "operator"

// Channel is where the database announces that messages which somebody waits for were written; the payload is their topic.
const Channel = "outbox"

// Awaited reports whether somebody waits for messages of the topic, so that they are worth an announcement. (Announcing every
// message would serialize all commits.)
func Awaited(topic string) bool {
	return topic == LeaseNudge || topic == FabricNudge || topic == NodeNudge
}

// Message is one effect to deliver.
type Message struct {
	ID      ids.Outbox
	Topic   string
	Key     string
	Payload []byte // JSON
	Attempt int    // 1 the first time
}
