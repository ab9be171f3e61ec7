package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/tenant"
)

const (
	maxBody      = 1 << 20  // bytes
	maxAgentBody = 32 << 20 // what a sweep of a large fabric has read; each call has its own, mostly lower bound
	// A request takes no longer than this; one that may wait for news has longPollTimeout, a stream has none.
	requestTimeout  = 30 * time.Second
	longPollTimeout = 75 * time.Second

	headerRequestID = "X-Request-Id"
	refreshCookie   = "leasehold_refresh"
)

// identify gives the request an id and notes what handlers may know of it. A proxy's id is kept when it looks like one.
func identify() gin.HandlerFunc {
	wellFormed := regexp.MustCompile(`^[A-Za-z0-9_-]{8,64}$`)
	return func(c *gin.Context) {
		id := c.GetHeader(headerRequestID)
		if !wellFormed.MatchString(id) {
			id = newRequestID()
		}
		c.Header(headerRequestID, id)
		info := requestInfo{
			id: id, path: c.Request.URL.Path, query: c.Request.URL.Query(), accept: c.GetHeader("Accept"),
			ip: c.ClientIP(), userAgent: c.Request.UserAgent(),
		}
		if cookie, err := c.Request.Cookie(refreshCookie); err == nil {
			info.cookie = cookie.Value
		}
		if cookie, err := c.Request.Cookie(oidcCookie); err == nil {
			info.oidc = cookie.Value
		}
		source, _ := netip.ParseAddr(info.ip) // the invalid address matches no network
		setContext(c, audit.WithRequest(tenant.WithSource(context.WithValue(c.Request.Context(), requestKey{}, info), source), id, info.ip))
		c.Next()
	}
}

func newRequestID() string {
	var raw [12]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	return "req_" + hex.EncodeToString(raw[:])
}

// setContext replaces the request's context, which is the one that handlers get.
//
//nolint:revive // whose context it is comes first here
func setContext(c *gin.Context, ctx context.Context) { c.Request = c.Request.WithContext(ctx) }

// accessLog writes one line a request: no query, no header, no body, since those may hold secrets.
func accessLog(log *slog.Logger, clock clock.Clock, observe func(route, method string, status int, took time.Duration)) gin.HandlerFunc {
	return func(c *gin.Context) {
		start := clock.Now()
		c.Next()
		took, status := clock.Now().Sub(start), c.Writer.Status()
		route := c.FullPath()
		if route == "" {
			route = "none"
		}
		observe(route, c.Request.Method, status, took)
		attributes := []slog.Attr{
			slog.String("method", c.Request.Method), slog.String("route", route), slog.Int("status", status),
			slog.Float64("took_ms", float64(took.Microseconds())/1000), slog.Int("bytes", c.Writer.Size()),
			slog.String("request_id", RequestID(c.Request.Context())), slog.String("ip", c.ClientIP()),
		}
		if actor, ok := tenant.ActorFrom(c.Request.Context()); ok {
			attributes = append(attributes, slog.String("actor", actor.Name()), slog.String("org", actor.Org.String()))
		}
		if len(c.Errors) > 0 {
			attributes = append(attributes, slog.String("error", c.Errors.Last().Error()))
		}
		log.LogAttrs(c.Request.Context(), logLevel(status), "request", attributes...)
	}
}

// recoverPanics turns a panic into a 500 whose cause only the log knows.
func recoverPanics(log *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { //nolint:errorlint,err113 // net/http compares it so
				panic(cause) //nolint:forbidigo // net/http cuts the connection then, which is what was wanted
			}
			log.ErrorContext(c.Request.Context(), "panic", slog.Any("cause", cause), slog.String("stack", string(debug.Stack())),
				slog.String("request_id", RequestID(c.Request.Context())))
			refuse(c, fmt.Errorf("panic: %v", cause))
		}()
		c.Next()
	}
}

// apiPolicy forbids everything: an API answer is data, never a page.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'"

// securityHeaders go on every answer; pages replace the policy by their own.
func securityHeaders() gin.HandlerFunc {
	return func(c *gin.Context) {
		header := c.Writer.Header()
		header.Set("Content-Security-Policy", apiPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=()")
		header.Set("Cache-Control", "no-store")
		c.Next()
	}
}

// limitBody refuses a body of more than limit bytes, at once when its length is declared, else when the limit is read past.
func limitBody(limit int64) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.Request.ContentLength > limit {
			refuse(c, errTooLarge(limit))
			return
		}
		c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, limit)
		c.Next()
	}
}

// limitOwnBody is limitBody with what the operation may have.
func limitOwnBody() gin.HandlerFunc {
	return func(c *gin.Context) { limitBody(operationOf(c).maxBody)(c) }
}

func errTooLarge(limit int64) error {
	return &protocolError{status: http.StatusRequestEntityTooLarge, code: "too-large", detail: fmt.Sprintf("a request body has at most %d bytes", limit)}
}

// limitTime ends the request's context in time, and lets the connection wait a little longer for the answer to say so.
func limitTime() gin.HandlerFunc {
	return func(c *gin.Context) {
		op := operationOf(c)
		if op.exports || op.streams && wantsEventStream(c.Request.Context()) {
			c.Next()
			return
		}
		limit := requestTimeout
		if c.Query("wait") != "" {
			limit = longPollTimeout
		}
		ctx, cancel := context.WithTimeout(c.Request.Context(), limit)
		defer cancel()
		setContext(c, ctx)
		c.Next()
	}
}

const operationKey = "leasehold.operation"

// find notes which operation of the contract the request is for.
func find(all operations) gin.HandlerFunc {
	return func(c *gin.Context) {
		op, ok := all[c.Request.Method+" "+c.FullPath()]
		if !ok {
			refuse(c, fmt.Errorf("route %s %s is not in the contract", c.Request.Method, c.FullPath()))
			return
		}
		c.Set(operationKey, op)
		c.Next()
	}
}

func operationOf(c *gin.Context) *operation {
	op, _ := c.MustGet(operationKey).(*operation)
	return op
}
