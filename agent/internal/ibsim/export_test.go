package ibsim

import "github.com/leasehold/leasehold/agent/protocol"

// NetlistText is the topology in the simulator's words.
func NetlistText(t protocol.Topology) (string, error) {
	list, err := newNetlist(t)
	return list.text, err
}
