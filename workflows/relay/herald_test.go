package relay_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows/relay"
)

// page is a log that may be written and read at once.
type page struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *page) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(line)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func TestTheOperatorIsWarnedAndNudgesAreLeftAlone(t *testing.T) {
	t.Parallel()
	b, log := &box{done: map[ids.Outbox]bool{}}, &page{}
	b.put(outbox.Notify, "operator")
	b.put(outbox.Notify, "org_1")
	b.put(outbox.LeaseNudge, "lease_1")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	herald := &relay.Herald{Outbox: b, Clock: clock.System{}, Log: slog.New(slog.NewTextHandler(log, nil))}
	go func() { ended <- herald.Run(ctx) }()
	require.Eventually(t, func() bool { return b.left() == 1 }, 5*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), "level=WARN msg=message to=operator")
	require.Contains(t, log.String(), "level=INFO msg=message to=org_1")
}
