package uplink

import "github.com/leasehold/leasehold/agent/protocol"

const (
	// maxSpooledSamples bounds what is kept while the control plane is away: half an hour of a node with 8 GPUs and 8 HCAs.
	maxSpooledSamples = 180 * 16
	// maxSamplesPerBeat bounds one heartbeat, so that catching up does not make one that is too large.
	maxSamplesPerBeat = 1000
)

// samples are meter readings that wait for a heartbeat. When there are too many, the oldest go: results are never dropped for
// them, since those lie in the journal.
type samples struct {
	waiting []protocol.Sample
	dropped int
}

func (s *samples) add(more []protocol.Sample) {
	s.waiting = append(s.waiting, more...)
	if excess := len(s.waiting) - maxSpooledSamples; excess > 0 {
		s.dropped += excess
		s.waiting = append([]protocol.Sample(nil), s.waiting[excess:]...)
	}
}

// next is what the next heartbeat carries.
func (s *samples) next() []protocol.Sample { return s.waiting[:min(len(s.waiting), maxSamplesPerBeat)] }

// sent forgets the first n.
func (s *samples) sent(n int) { s.waiting = append([]protocol.Sample(nil), s.waiting[n:]...) }
