package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
)

// boundAgentCall ends the request's context in time.
func boundAgentCall(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), agentTimeout)
	defer cancel()
	setContext(c, ctx)
	c.Next()
}

// agentHandler gets the agent that signed the request and the body as it travelled.
type agentHandler func(c *gin.Context, caller fleet.Caller, body []byte)

// signed lets only requests through that an agent has signed. The token is judged before anything is read of the body, so that
// nobody but an agent can make us read much.
func (a Agent) signed(limit int64, next agentHandler) gin.HandlerFunc {
	return func(c *gin.Context) {
		token, _ := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
		caller, err := a.Fleet.Authenticate(c.Request.Context(), token, c.Request.Method, c.Request.URL.RequestURI())
		if err != nil {
			refuse(c, err)
			return
		}
		most := limit
		if caller.Kind != protocol.FabricAgent && most == maxFabricResult {
			most = maxAgentCall
		}
		body, err := readAgentBody(c, most)
		if err == nil {
			err = caller.CheckBody(body)
		}
		if err != nil {
			refuse(c, err)
			return
		}
		next(c, caller, body)
	}
}

// readAgentBody reads the body as it travels.
func readAgentBody(c *gin.Context, limit int64) ([]byte, error) {
	if c.Request.ContentLength > limit {
		return nil, errTooLarge(limit)
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge(limit)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil, err
	case err != nil:
		return nil, errAgentBody("the body was cut off")
	}
	return body, nil
}

func errAgentBody(detail string) error {
	return &protocolError{status: http.StatusBadRequest, code: "malformed-request", detail: detail}
}

// decodeAgentBody unpacks and decodes a JSON body. It refuses what PostgreSQL could not keep: text that is not UTF-8, and NUL.
func decodeAgentBody(c *gin.Context, wire []byte, limit int64, into any) error {
	if media, _, err := mime.ParseMediaType(c.ContentType()); err != nil || media != "application/json" {
		return &protocolError{status: http.StatusUnsupportedMediaType, code: "unsupported-media-type", detail: "the body must be application/json"}
	}
	body, err := unpackAgentBody(c.GetHeader("Content-Encoding"), wire, limit*maxExpansion)
	if err != nil {
		return err
	}
	if !utf8.Valid(body) || hasNUL(body) {
		return errAgentBody("the body is not UTF-8 text without NUL")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(into); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return fault.New(fault.Invalid, "malformed-body", "the body does not have the protocol's form").
				At("/"+strings.ReplaceAll(kind.Field, ".", "/"), "it cannot be a JSON "+kind.Value)
		}
		return errAgentBody("the body is not the JSON that the protocol says")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errAgentBody("something follows the body's JSON")
	}
	return nil
}

func unpackAgentBody(encoding string, wire []byte, limit int64) ([]byte, error) {
	switch encoding {
	case "", "identity":
		return wire, nil
	case "gzip":
	default:
		return nil, &protocolError{status: http.StatusUnsupportedMediaType, code: "unsupported-media-type", detail: "the encoding must be gzip or none"}
	}
	z, err := gzip.NewReader(bytes.NewReader(wire))
	if err != nil {
		return nil, errAgentBody("the body is not gzip")
	}
	body, err := io.ReadAll(io.LimitReader(z, limit+1))
	switch {
	case err != nil:
		return nil, errAgentBody("the body's gzip is damaged or cut off")
	case int64(len(body)) > limit:
		return nil, errTooLarge(limit)
	}
	return body, nil
}

// hasNUL reports whether some JSON text has an escaped NUL: \u0000 behind an even number of backslashes.
func hasNUL(body []byte) bool {
	for from := 0; ; {
		at := bytes.Index(body[from:], []byte(`\u0000`))
		if at < 0 {
			return bytes.IndexByte(body, 0) >= 0
		}
		at += from
		slashes := 0
		for at-slashes-1 >= 0 && body[at-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return true
		}
		from = at + 1
	}
}
