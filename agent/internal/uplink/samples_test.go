package uplink

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

func TestSamplesAreBoundedAndTheOldestGoFirst(t *testing.T) {
	t.Parallel()
	var s samples
	for n := range maxSpooledSamples + 10 {
		s.add([]protocol.Sample{{At: time.Unix(int64(n), 0)}})
	}
	require.Len(t, s.waiting, maxSpooledSamples)
	require.Equal(t, 10, s.dropped)
	require.EqualValues(t, 10, s.next()[0].At.Unix())
	require.Len(t, s.next(), maxSamplesPerBeat)
	s.sent(maxSamplesPerBeat)
	require.EqualValues(t, 10+maxSamplesPerBeat, s.next()[0].At.Unix())
}
