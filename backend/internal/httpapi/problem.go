package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// statusOf is the one map from faults to HTTP. A test ranges over fault.Kinds, so that none is forgotten.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusUnprocessableEntity
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Unfunded:
		return http.StatusPaymentRequired
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Expired:
		return http.StatusGone
	case fault.Stale:
		return http.StatusPreconditionFailed
	case fault.Exhausted:
		return http.StatusTooManyRequests
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Internal:
		return http.StatusInternalServerError
	default:
		return 0
	}
}

// protocolError is a failure of HTTP itself, which the domain has no fault for: 400, 405, 413, 415, 428.
type protocolError struct {
	status int
	code   string
	detail string
	fields []fault.Field
}

// Error implements error.
func (e *protocolError) Error() string { return e.detail }

// statusClientClosed is what the log says of a request whose client went away; nobody reads the answer.
const statusClientClosed = 499

// newProblem translates an error into the problem that the client sees. Only faults have words; everything else is our own defect,
// and its words stay in the log.
func newProblem(err error) api.Problem {
	var protocol *protocolError
	if errors.As(err, &protocol) {
		return problem(protocol.status, protocol.code, protocol.detail, protocol.fields, nil)
	}
	var f *fault.Fault
	switch {
	case errors.As(err, &f) && f.Kind != fault.Internal:
		status := statusOf(f.Kind)
		if f.Code == codePreconditionRequired {
			status = http.StatusPreconditionRequired
		}
		return problem(status, f.Code, f.Detail, f.Fields, f.Facts)
	case errors.Is(err, context.DeadlineExceeded):
		return problem(http.StatusServiceUnavailable, "timeout", "it took too long, try again", nil, nil)
	case errors.Is(err, context.Canceled):
		return problem(statusClientClosed, "canceled", "the client went away", nil, nil)
	default:
		return problem(http.StatusInternalServerError, "internal", "something went wrong on our side", nil, nil)
	}
}

func problem(status int, code, detail string, fields []fault.Field, facts map[string]any) api.Problem {
	p := api.Problem{Type: "/problems/" + code, Title: title(status), Status: status, Detail: orNil(detail)}
	if len(fields) > 0 {
		views := each(fields, func(f fault.Field) api.ProblemField { return api.ProblemField{Pointer: f.Pointer, Detail: f.Detail} })
		p.Errors = &views
	}
	if len(facts) > 0 {
		p.Facts = &facts
	}
	return p
}

func title(status int) string {
	if status == statusClientClosed {
		return "Client Closed Request"
	}
	return http.StatusText(status)
}

// refuse ends the request with the error's problem document, and notes the error for the access log.
func refuse(c *gin.Context, err error) {
	_ = c.Error(err)
	if c.Writer.Written() {
		c.Abort()
		return
	}
	p := newProblem(err)
	if id := RequestID(c.Request.Context()); id != "" {
		p.Instance = &id
	}
	header := c.Writer.Header()
	for _, name := range []string{"ETag", "Link", "Set-Cookie", "Content-Length"} {
		header.Del(name)
	}
	switch p.Status {
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer realm="leasehold"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if header.Get("Retry-After") == "" {
			header.Set("Retry-After", strconv.Itoa(secondsToWait(p)))
		}
	}
	body, encodeErr := json.Marshal(p)
	if encodeErr != nil { // a fact that is not JSON: our own defect
		_ = c.Error(encodeErr)
		body = []byte(`{"type":"/problems/internal","title":"Internal Server Error","status":500}`)
		p.Status = http.StatusInternalServerError
	}
	header.Set("Cache-Control", "no-store")
	c.Data(p.Status, "application/problem+json", body)
	c.Abort()
}

// factRetryAfter is the fact in which a fault says after how many seconds it is worth trying again.
const factRetryAfter = "retry_after_seconds"

func secondsToWait(p api.Problem) int {
	if p.Facts != nil {
		if wait, ok := (*p.Facts)[factRetryAfter].(int); ok {
			return wait
		}
	}
	return int(retryAfter / time.Second)
}

// retryAfter is how long a client waits after a 503 that knows no better.
const retryAfter = time.Second

// logLevel is how loud the log is about an answer: only our own defects are errors.
func logLevel(status int) slog.Level {
	switch {
	case status == http.StatusServiceUnavailable:
		return slog.LevelWarn
	case status >= http.StatusInternalServerError:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}
