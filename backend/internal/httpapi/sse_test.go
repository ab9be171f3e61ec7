package httpapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAStreamSendsEventsInOrderAndEnds(t *testing.T) {
	t.Parallel()
	var asked []int64
	stream := eventStream{ctx: t.Context(), after: 7, next: func(_ context.Context, after int64) ([]serverEvent, bool, error) {
		asked = append(asked, after)
		if after >= 9 {
			return []serverEvent{{Name: "end", Data: map[string]any{}}}, true, nil
		}
		return []serverEvent{{ID: after + 1, Name: "lease.active", Data: map[string]any{"line": "one\ntwo"}}}, false, nil
	}}
	w := httptest.NewRecorder()
	require.NoError(t, stream.VisitListLeaseEventsResponse(w))
	require.Equal(t, []int64{7, 8, 9}, asked)
	require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	require.Equal(t, "id: 8\nevent: lease.active\ndata: {\"line\":\"one\\ntwo\"}\n\nid: 9\nevent: lease.active\ndata: {\"line\":\"one\\ntwo\"}\n\nevent: end\ndata: {}\n\n",
		w.Body.String())
	require.True(t, w.Flushed)
}

func TestASilentStreamShowsThatItLivesUntilTheClientGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*keepAlive+time.Second)
		defer cancel()
		stream := eventStream{ctx: ctx, next: func(ctx context.Context, _ int64) ([]serverEvent, bool, error) {
			<-ctx.Done()
			return nil, false, ctx.Err()
		}}
		w := httptest.NewRecorder()
		require.NoError(t, stream.serve(w))
		require.Equal(t, ": alive\n\n: alive\n\n", w.Body.String())
	})
}

func TestAStreamWhoseSourceFailsSaysSoToTheLog(t *testing.T) {
	t.Parallel()
	stream := eventStream{ctx: t.Context(), next: func(context.Context, int64) ([]serverEvent, bool, error) {
		return nil, false, errors.New("database gone")
	}}
	require.ErrorContains(t, stream.serve(httptest.NewRecorder()), "database gone")
}
