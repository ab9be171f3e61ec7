package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/idempotency"
	"github.com/leasehold/leasehold/backend/tenant"
)

const (
	headerIdempotencyKey = "Idempotency-Key"
	headerReplayed       = "Idempotency-Replayed"
	// A change that loses a race in the database (a deadlock, an overlap with another's booking) is tried again from the start, in a new
	// transaction which sees what the winner did.
	maxTries = 4
)

// Transactor runs fn in one transaction, which the context carries.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

type effectKey struct{}

// IdempotencyKey names the intended change among everybody's, for effects outside the database; "" where the operation takes no key.
func IdempotencyKey(ctx context.Context) string {
	key, _ := ctx.Value(effectKey{}).(string)
	return key
}

// once wraps every operation that takes an Idempotency-Key: it is the last middleware, and calls the handler itself.
type once struct {
	keeper *idempotency.Keeper
	tx     Transactor
}

// errRefused rolls a transaction back whose handler has answered with an error, or only pretended (dry_run).
var errRefused = errors.New("rolled back: the answer is no change")

func (o once) handle(c *gin.Context) {
	op := operationOf(c)
	if !op.idempotent {
		c.Next()
		return
	}
	actor, _ := tenant.ActorFrom(c.Request.Context())
	request := idempotency.Request{
		Org: actor.Org, Actor: actor.Name(), Key: c.GetHeader(headerIdempotencyKey), Method: c.Request.Method,
		Path: requestFrom(c.Request.Context()).target(), Body: bodyOf(c),
	}
	setContext(c, context.WithValue(c.Request.Context(), effectKey{}, request.EffectKey()))
	if op.permission.offTransaction {
		o.outside(c, op, request)
	} else {
		o.inside(c, op, request)
	}
	c.Abort() // the handler has run
}

// attempt is one run of the handler, whose answer waits in a buffer until its transaction has ended.
type attempt struct {
	answer   *buffer
	replayed *idempotency.Answer
	err      error
}

// inside does a change whose effect is all in the database: record and effect share one transaction.
func (o once) inside(c *gin.Context, op *operation, request idempotency.Request) {
	var last attempt
	for range maxTries {
		last = o.try(c, op, request)
		if !worthAnotherTry(c, last) {
			break
		}
		c.Errors = nil
	}
	last.deliver(c)
}

func (o once) try(c *gin.Context, op *operation, request idempotency.Request) attempt {
	outer, writer := c.Request, c.Writer
	a := attempt{answer: newBuffer(writer)}
	defer func() { c.Writer, c.Request = writer, outer }()         // after a panic as well, or its answer would be lost in the buffer
	for _, name := range []string{"Content-Type", "Retry-After"} { // of a try before
		writer.Header().Del(name)
	}
	a.err = o.tx.WithinTx(outer.Context(), func(ctx context.Context) error {
		stored, found, err := o.keeper.Begin(ctx, request)
		if err != nil {
			return err
		}
		if found {
			a.replayed = &stored
			return nil
		}
		c.Writer = a.answer
		c.Request = outer.WithContext(ctx)
		c.Handler()(c)
		if a.answer.Status() >= http.StatusBadRequest || c.Query("dry_run") == "true" {
			return errRefused
		}
		answer, err := a.answer.record(op.secrets)
		if err != nil {
			return err
		}
		return o.keeper.Finish(ctx, request, answer)
	})
	if errors.Is(a.err, errRefused) {
		a.err = nil
	}
	return a
}

// worthAnotherTry reports whether the change lost a race.
func worthAnotherTry(c *gin.Context, a attempt) bool {
	err := a.err
	if err == nil && a.replayed == nil && a.answer.Status() >= http.StatusBadRequest && len(c.Errors) > 0 {
		err = c.Errors.Last().Err
	}
	if code := fault.CodeOf(err); code != "retry" && code != "overlap" {
		return false
	}
	return c.Request.Context().Err() == nil
}

// outside does a change that leaves the database: claim, effect, answer. The handler is idempotent by IdempotencyKey.
func (o once) outside(c *gin.Context, op *operation, request idempotency.Request) {
	a := attempt{answer: newBuffer(c.Writer)}
	a.err = o.tx.WithinTx(c.Request.Context(), func(ctx context.Context) error {
		stored, found, err := o.keeper.Begin(ctx, request)
		if err != nil {
			return err
		}
		if found {
			a.replayed = &stored
			return nil
		}
		return o.keeper.Claim(ctx, request)
	})
	if a.err == nil && a.replayed == nil {
		o.run(c, a.answer)
		a.err = o.settle(c, op, request, a.answer)
	}
	a.deliver(c)
}

// run runs the handler into the buffer.
func (o once) run(c *gin.Context, answer *buffer) {
	writer := c.Writer
	defer func() { c.Writer = writer }()
	c.Writer = answer
	c.Handler()(c)
}

// settle keeps the answer of an effect outside, a refusal too: the same request again is told the same. After a failure of ours the
// next request may try at once.
func (o once) settle(c *gin.Context, op *operation, request idempotency.Request, answer *buffer) error {
	ctx := context.WithoutCancel(c.Request.Context()) // the effect has happened, whether or not the client still listens
	if answer.Status() >= http.StatusInternalServerError {
		return o.tx.WithinTx(ctx, func(ctx context.Context) error { return o.keeper.Release(ctx, request) })
	}
	record, err := answer.record(op.secrets)
	if err != nil {
		return err
	}
	return o.tx.WithinTx(ctx, func(ctx context.Context) error { return o.keeper.Finish(ctx, request, record) })
}

// deliver sends what the attempt came to.
func (a attempt) deliver(c *gin.Context) {
	switch {
	case a.err != nil:
		if fault.CodeOf(a.err) == "idempotency-key-in-use" {
			c.Header("Retry-After", "1")
		}
		refuse(c, a.err)
	case a.replayed != nil:
		replay(c, *a.replayed)
	default:
		a.answer.flush()
	}
}

func replay(c *gin.Context, answer idempotency.Answer) {
	for name, value := range answer.Header {
		c.Header(name, value)
	}
	c.Header(headerReplayed, "true")
	c.Status(answer.Status)
	if len(answer.Body) == 0 {
		c.Writer.WriteHeaderNow()
		return
	}
	if _, err := c.Writer.Write(answer.Body); err != nil {
		_ = c.Error(fmt.Errorf("write replay: %w", err))
	}
}

// buffer is a response writer that keeps the answer until flush. It shares the header map of the writer beneath.
type buffer struct {
	gin.ResponseWriter
	status int
	body   bytes.Buffer
}

func newBuffer(beneath gin.ResponseWriter) *buffer { return &buffer{ResponseWriter: beneath} }

// WriteHeader implements http.ResponseWriter.
func (b *buffer) WriteHeader(status int) {
	if status > 0 && b.status == 0 {
		b.status = status
	}
}

// WriteHeaderNow implements gin.ResponseWriter.
func (b *buffer) WriteHeaderNow() { b.WriteHeader(http.StatusOK) }

// Write implements http.ResponseWriter.
func (b *buffer) Write(p []byte) (int, error) {
	b.WriteHeaderNow()
	return b.body.Write(p)
}

// WriteString implements io.StringWriter.
func (b *buffer) WriteString(s string) (int, error) {
	b.WriteHeaderNow()
	return b.body.WriteString(s)
}

// Status implements gin.ResponseWriter.
func (b *buffer) Status() int {
	if b.status == 0 {
		return http.StatusOK
	}
	return b.status
}

// Size implements gin.ResponseWriter.
func (b *buffer) Size() int { return b.body.Len() }

// Written implements gin.ResponseWriter.
func (b *buffer) Written() bool { return b.status != 0 }

// Flush implements http.Flusher: nothing leaves before its time.
func (b *buffer) Flush() {}

func (b *buffer) flush() {
	b.Header().Set("Content-Length", strconv.Itoa(b.body.Len()))
	if b.Status() == http.StatusNoContent {
		b.Header().Del("Content-Length")
	}
	b.ResponseWriter.WriteHeader(b.Status())
	b.ResponseWriter.WriteHeaderNow()
	_, _ = b.ResponseWriter.Write(b.body.Bytes()) // the client may be gone; the change stands
}

// record is what a replay will say: without secrets, and without headers that are no part of the answer.
func (b *buffer) record(secrets []string) (idempotency.Answer, error) {
	answer := idempotency.Answer{Status: b.Status(), Header: map[string]string{}, Body: bytes.Clone(b.body.Bytes())}
	for _, name := range []string{"Content-Type", "ETag", "Location"} {
		if value := b.Header().Get(name); value != "" {
			answer.Header[name] = value
		}
	}
	if len(secrets) == 0 || answer.Status >= http.StatusBadRequest {
		return answer, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(answer.Body, &members); err != nil {
		return idempotency.Answer{}, fmt.Errorf("remove secrets: %w", err)
	}
	for _, name := range secrets {
		delete(members, name)
	}
	body, err := json.Marshal(members)
	if err != nil {
		return idempotency.Answer{}, fmt.Errorf("remove secrets: %w", err)
	}
	answer.Body = body
	return answer, nil
}
