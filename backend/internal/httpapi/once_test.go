package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/idempotency"
	"github.com/leasehold/leasehold/backend/tenant"
)

// fakeTx counts transactions, and forgets what a store wrote in one that fails.
type fakeTx struct {
	records           map[string]idempotency.Record
	began, rolledBack int
	commitErr         error
}

func (f *fakeTx) WithinTx(ctx context.Context, fn func(ctx context.Context) error) error {
	f.began++
	before := maps.Clone(f.records)
	err := fn(ctx)
	if err == nil {
		err = f.commitErr
	}
	if err != nil {
		f.rolledBack++
		f.records = before
	}
	return err
}

func (f *fakeTx) TryLock(context.Context, string) (bool, error) { return true, nil }

func (f *fakeTx) Find(_ context.Context, _ ids.Org, _, key string) (idempotency.Record, bool, error) {
	record, ok := f.records[key]
	return record, ok, nil
}

func (f *fakeTx) Save(_ context.Context, record idempotency.Record) error {
	f.records[record.Key] = record
	return nil
}

// bench is one route behind once, whose handler the test gives.
type bench struct {
	*fakeTx
	clock  *clock.Fake
	engine *gin.Engine
}

//nolint:forbidigo // as New does
func newBench(off bool, handler func(call int, c *gin.Context)) *bench {
	gin.SetMode(gin.ReleaseMode)
	b := &bench{
		fakeTx: &fakeTx{records: map[string]idempotency.Record{}}, clock: clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)), engine: gin.New(),
	}
	b.engine.ContextWithFallback = true
	op := &operation{idempotent: true, permission: permission{offTransaction: off}}
	calls := 0
	b.engine.POST("/x", identify(), recoverPanics(slog.New(slog.DiscardHandler)), func(c *gin.Context) {
		c.Set(operationKey, op)
		c.Set(bodyKey, []byte(c.GetHeader("Body")))
		setContext(c, tenant.WithActor(c.Request.Context(), tenant.Actor{Org: ids.Make[ids.Org](), User: ids.Make[ids.User]()}))
	}, once{keeper: idempotency.New(b.fakeTx, b.clock), tx: b.fakeTx}.handle, func(c *gin.Context) {
		calls++
		handler(calls, c)
	})
	return b
}

func (b *bench) post(target, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, target, strings.NewReader("")) //nolint:usetesting // no T here
	request.Header.Set(headerIdempotencyKey, "k")
	request.Header.Set("Body", body)
	response := httptest.NewRecorder()
	b.engine.ServeHTTP(response, request)
	return response
}

func created(_ int, c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"ok": true}) }

func TestALostRaceIsRunAgainInANewTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(false, func(call int, c *gin.Context) {
		if call < 3 {
			refuse(c, fault.New(fault.Conflict, "overlap", "taken"))
			return
		}
		created(call, c)
	})
	got := b.post("/x", "")
	require.Equal(t, http.StatusCreated, got.Code, got.Body)
	require.Equal(t, "application/json; charset=utf-8", got.Header().Get("Content-Type"))
	require.Equal(t, 3, b.began)
	require.Equal(t, 2, b.rolledBack)
}

func TestARaceThatIsLostForGoodIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(false, func(_ int, c *gin.Context) { refuse(c, fault.New(fault.Unavailable, "retry", "deadlock")) })
	got := b.post("/x", "")
	require.Equal(t, http.StatusServiceUnavailable, got.Code)
	require.Equal(t, "1", got.Header().Get("Retry-After"))
	require.Equal(t, maxTries, b.began)
	require.Empty(t, b.records)
}

func TestARefusalIsRolledBackAndNotRunAgain(t *testing.T) {
	t.Parallel()
	b := newBench(false, func(_ int, c *gin.Context) { refuse(c, fault.New(fault.Unfunded, "insufficient-balance", "no")) })
	require.Equal(t, http.StatusPaymentRequired, b.post("/x", "").Code)
	require.Equal(t, 1, b.began)
	require.Equal(t, 1, b.rolledBack)
}

func TestADryRunIsRolledBackAndKeepsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(false, created)
	got := b.post("/x?dry_run=true", "")
	require.Equal(t, http.StatusCreated, got.Code)
	require.JSONEq(t, `{"ok":true}`, got.Body.String())
	require.Equal(t, 1, b.rolledBack)
	require.Empty(t, b.records)
	require.Empty(t, b.post("/x", "").Header().Get(headerReplayed), "the real one, under the same key, is no repetition")
}

func TestAnAnswerWhoseCommitFailsIsNeverSent(t *testing.T) {
	t.Parallel()
	b := newBench(false, func(call int, c *gin.Context) {
		c.Header("ETag", `"2"`)
		created(call, c)
	})
	b.commitErr = errors.New("connection lost")
	got := b.post("/x", "")
	require.Equal(t, http.StatusInternalServerError, got.Code)
	require.NotContains(t, got.Body.String(), "ok")
	require.Empty(t, got.Header().Get("ETag"))
}

func TestAPanicInAHandlerIsAnsweredPastTheBuffer(t *testing.T) {
	t.Parallel()
	b := newBench(false, func(int, *gin.Context) { panic("defect") }) //nolint:forbidigo // what the test is about
	got := b.post("/x", "")
	require.Equal(t, http.StatusInternalServerError, got.Code)
	require.Equal(t, "application/problem+json", got.Header().Get("Content-Type"))
	require.Empty(t, b.records)
}

func TestAnEffectOutsideIsClaimedThenKept(t *testing.T) {
	t.Parallel()
	b := newBench(true, func(call int, c *gin.Context) {
		if IdempotencyKey(c) == "" {
			refuse(c, errors.New("the handler must know its key"))
			return
		}
		created(call, c)
	})
	require.Equal(t, http.StatusCreated, b.post("/x", "").Code)
	again := b.post("/x", "")
	require.Equal(t, "true", again.Header().Get(headerReplayed))
	require.JSONEq(t, `{"ok":true}`, again.Body.String())
	require.Equal(t, http.StatusUnprocessableEntity, b.post("/x", "other").Code)
}

func TestAnEffectOutsideThatFailedMayBeTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(true, func(call int, c *gin.Context) {
		if call == 1 {
			refuse(c, fault.New(fault.Unavailable, "gateway", "no answer"))
			return
		}
		created(call, c)
	})
	require.Equal(t, http.StatusServiceUnavailable, b.post("/x", "").Code)
	require.Equal(t, http.StatusUnprocessableEntity, b.post("/x", "other").Code, "the key is still this request's")
	require.Equal(t, http.StatusCreated, b.post("/x", "").Code)
}

func TestAnEffectOutsideWhoseProcessDiedIsTakenOverInTime(t *testing.T) {
	t.Parallel()
	b := newBench(true, func(call int, c *gin.Context) {
		if call == 1 {
			panic("killed") //nolint:forbidigo // what the test is about
		}
		created(call, c)
	})
	require.Equal(t, http.StatusInternalServerError, b.post("/x", "").Code)
	soon := b.post("/x", "")
	require.Equal(t, http.StatusConflict, soon.Code, "the first may still be running")
	require.Contains(t, soon.Body.String(), "idempotency-key-in-use")
	b.clock.Advance(3 * time.Minute)
	require.Equal(t, http.StatusCreated, b.post("/x", "").Code)
}

func TestARefusalOfAnEffectOutsideIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(true, func(_ int, c *gin.Context) { refuse(c, fault.New(fault.Unfunded, "card-declined", "declined")) })
	require.Equal(t, http.StatusPaymentRequired, b.post("/x", "").Code)
	again := b.post("/x", "")
	require.Equal(t, http.StatusPaymentRequired, again.Code)
	require.Equal(t, "true", again.Header().Get(headerReplayed))
	require.Equal(t, "application/problem+json", again.Header().Get("Content-Type"))
}
