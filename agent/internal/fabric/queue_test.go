package fabric_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestOfThoseThatWaitOnlyTheNewestHasItsTurn(t *testing.T) {
	t.Parallel()
	queue := fabric.NewQueue()
	began, finish := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		require.NoError(t, queue.Do(t.Context(), func(context.Context) error {
			close(began)
			<-finish
			return nil
		}))
	})
	<-began
	const callers = 5
	var mu sync.Mutex
	worked := 0
	arrived := make(chan struct{}, callers)
	results := make(chan error, callers)
	for range callers {
		group.Go(func() {
			results <- queue.Do(signalled{t.Context(), arrived}, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				worked++
				return nil
			})
		})
	}
	for range callers {
		<-arrived
	}
	close(finish)
	group.Wait()
	close(results)
	superseded := 0
	for err := range results {
		if err != nil {
			requireCode(t, fabric.CodeSuperseded, err)
			superseded++
		}
	}
	require.Equal(t, callers-1, superseded)
	require.Equal(t, 1, worked)
}

// signalled tells when somebody begins to wait for the context.
type signalled struct {
	context.Context

	waiting chan<- struct{}
}

func (s signalled) Done() <-chan struct{} {
	s.waiting <- struct{}{}
	return s.Context.Done()
}

func TestWhoGivesUpWaitingLeavesTheQueue(t *testing.T) {
	t.Parallel()
	queue := fabric.NewQueue()
	began, finish := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- queue.Do(t.Context(), func(context.Context) error {
			close(began)
			<-finish
			return nil
		})
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, queue.Do(ctx, func(context.Context) error { return nil }), context.Canceled)
	close(finish)
	require.NoError(t, <-ended)
	require.NoError(t, queue.Do(t.Context(), func(context.Context) error { return nil }))
}

// patience of tests: as short as it can be, with a deadline that only a defect reaches.
func patience() fabric.Patience {
	return fabric.Patience{Deadline: time.Minute, Silence: time.Millisecond, FirstPoll: time.Microsecond, LastPoll: time.Microsecond}
}

func TestSettlingEndsWhenTheLastPortIsRight(t *testing.T) {
	t.Parallel()
	judge := fabric.NewJudge(desired())
	var asked [][]protocol.GUID
	unsettled, err := fabric.Settle(t.Context(), patience(), judge, []protocol.GUID{1, 2}, func(_ context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
		asked = append(asked, ports)
		links := []protocol.LinkState{link(ports[0], []protocol.PKey{0x7fff}, []protocol.PKey{0x7fff})}
		for _, port := range ports[1:] {
			links = append(links, link(port, []protocol.PKey{0x8005, 0x7fff}, []protocol.PKey{0x7fff}))
		}
		return links, nil
	})
	require.NoError(t, err)
	require.Empty(t, unsettled)
	require.Equal(t, [][]protocol.GUID{{1, 2}, {2}}, asked, "a port that is right is not asked again")
}

func TestSettlingGivesUpOnPortsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	unsettled, err := fabric.Settle(t.Context(), patience(), fabric.NewJudge(desired()), []protocol.GUID{1}, func(context.Context, []protocol.GUID) ([]protocol.LinkState, error) {
		return []protocol.LinkState{{GUID: 1}}, nil
	})
	require.NoError(t, err)
	require.Equal(t, []protocol.GUID{1}, unsettled)
}

func TestSettlingWaitsForPortsThatAnswerUntilTheDeadline(t *testing.T) {
	t.Parallel()
	short := patience()
	short.Deadline = 5 * time.Millisecond
	reads := 0
	unsettled, err := fabric.Settle(t.Context(), short, fabric.NewJudge(desired()), []protocol.GUID{1}, func(context.Context, []protocol.GUID) ([]protocol.LinkState, error) {
		reads++
		return []protocol.LinkState{link(1, []protocol.PKey{0x8005}, nil)}, nil
	})
	require.NoError(t, err)
	require.Equal(t, []protocol.GUID{1}, unsettled)
	require.Greater(t, reads, 1)
}

func TestSettlingEndsWithAReadingThatFails(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	_, err := fabric.Settle(t.Context(), patience(), fabric.NewJudge(desired()), []protocol.GUID{1}, func(context.Context, []protocol.GUID) ([]protocol.LinkState, error) {
		return nil, gone
	})
	require.ErrorIs(t, err, gone)
}
