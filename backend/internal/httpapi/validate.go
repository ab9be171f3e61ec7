package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
)

const bodyKey = "leasehold.body"

// errMalformedText refuses text that no column can hold: what is not UTF-8, or has the character NUL.
func errMalformedText(where string) error {
	return &protocolError{status: http.StatusBadRequest, code: "malformed-text", detail: where + " has text that is not UTF-8, or the character NUL"}
}

// readBody reads the body once, within the limit, and refuses what is not JSON where JSON is due.
func readBody() gin.HandlerFunc {
	return func(c *gin.Context) {
		body, err := takeBody(c, operationOf(c))
		if err != nil {
			refuse(c, err)
			return
		}
		c.Set(bodyKey, body)
		setContext(c, context.WithValue(c.Request.Context(), rawBodyKey{}, body))
		c.Next()
	}
}

func takeBody(c *gin.Context, op *operation) ([]byte, error) {
	if op.hasBody {
		if media, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || media != "application/json" {
			return nil, &protocolError{status: http.StatusUnsupportedMediaType, code: "unsupported-media-type", detail: "send Content-Type: application/json"}
		}
	}
	body, err := io.ReadAll(c.Request.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge(op.maxBody)
	case err != nil:
		return nil, &protocolError{status: http.StatusBadRequest, code: "unreadable", detail: "the request body ended early"}
	case !op.hasBody && len(bytes.TrimSpace(body)) > 0:
		return nil, &protocolError{status: http.StatusBadRequest, code: "unexpected-body", detail: "this operation takes no request body"}
	case op.hasBody && !json.Valid(body):
		return nil, &protocolError{status: http.StatusBadRequest, code: "malformed-json", detail: "the request body is not one JSON value"}
	case !utf8.Valid(body) || hasNUL(body):
		return nil, errMalformedText("the request body")
	case !utf8.ValidString(c.GetHeader(headerIdempotencyKey)):
		return nil, errMalformedText(headerIdempotencyKey)
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	c.Request.ContentLength = int64(len(body))
	return body, nil
}

type rawBodyKey struct{}

// rawBody returns the request's body as it was sent, for signatures over it.
func rawBody(ctx context.Context) []byte {
	body, _ := ctx.Value(rawBodyKey{}).([]byte)
	return body
}

// bodyOf returns the request's body as it was sent.
func bodyOf(c *gin.Context) []byte {
	body, _ := c.Get(bodyKey)
	raw, _ := body.([]byte)
	return raw
}

// validate checks the request against the contract, fills in its defaults, and refuses unknown members and query parameters. Answers
// name the place and the rule, and never repeat the value, which may be a secret.
func validate() gin.HandlerFunc {
	options := &openapi3filter.Options{
		MultiError: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, KeepValidatedValue: true,
	}
	return func(c *gin.Context) {
		op := operationOf(c)
		if op.ifMatch {
			if err := checkIfMatch(strings.TrimSpace(c.GetHeader("If-Match"))); err != nil {
				refuse(c, err)
				return
			}
		}
		var defects []fault.Field
		for name := range c.Request.URL.Query() {
			if !slices.Contains(op.query, name) {
				defects = append(defects, fault.Field{Pointer: "/query/" + escape(name), Detail: "is not a parameter of this operation"})
			}
		}
		parameters := make(map[string]string, len(c.Params))
		for _, p := range c.Params {
			parameters[p.Key] = p.Value
		}
		err := openapi3filter.ValidateRequest(c.Request.Context(), &openapi3filter.RequestValidationInput{
			Request: c.Request, PathParams: parameters, Route: op.route, Options: options,
		})
		if defects = append(defects, defectsOf(err)...); len(defects) > 0 {
			refuse(c, errDefects(defects))
			return
		}
		c.Next()
	}
}

// maxDefects bounds an answer: a body can have a defect every few bytes.
const maxDefects = 20

// errDefects is Invalid, except for a missing Idempotency-Key, which has an answer of its own.
func errDefects(defects []fault.Field) error {
	if i := slices.IndexFunc(defects, func(f fault.Field) bool { return f.Pointer == "/header/"+headerIdempotencyKey }); i >= 0 {
		return &protocolError{
			status: http.StatusBadRequest, code: "idempotency-key-required", fields: defects[i : i+1],
			detail: "send an Idempotency-Key header of 1 to 255 characters: a fresh random value for each intended change",
		}
	}
	slices.SortStableFunc(defects, func(a, b fault.Field) int { return strings.Compare(a.Pointer, b.Pointer) })
	err := fault.New(fault.Invalid, "invalid-request", "the request has defects")
	err.Fields = defects[:min(len(defects), maxDefects)]
	return err
}

// defectsOf flattens the validator's errors. It looks at the types themselves: the validator nests lists in errors in lists, and
// errors.As would look through to the inner list and lose the place.
func defectsOf(err error) []fault.Field {
	switch e := err.(type) { //nolint:errorlint // see above
	case nil:
		return nil
	case openapi3.MultiError:
		var all []fault.Field
		for _, one := range e {
			all = append(all, defectsOf(one)...)
		}
		return all
	case *openapi3filter.RequestError:
		return requestDefects(e)
	default:
		return []fault.Field{{Pointer: "", Detail: "does not fit the contract"}}
	}
}

func requestDefects(err *openapi3filter.RequestError) []fault.Field {
	base := ""
	if p := err.Parameter; p != nil {
		base = "/" + p.In + "/" + escape(p.Name)
	}
	if errors.Is(err.Err, openapi3filter.ErrInvalidRequired) {
		return []fault.Field{{Pointer: base, Detail: "is required"}}
	}
	if errors.Is(err.Err, openapi3filter.ErrInvalidEmptyValue) {
		return []fault.Field{{Pointer: base, Detail: "is empty"}}
	}
	if _, ok := errors.AsType[*openapi3filter.ParseError](err.Err); ok {
		return []fault.Field{{Pointer: base, Detail: "has the wrong form" + wanted(err.Parameter)}}
	}
	return schemaDefects(base, err.Err)
}

func wanted(p *openapi3.Parameter) string {
	if p == nil || p.Schema == nil || p.Schema.Value == nil || p.Schema.Value.Type == nil {
		return ""
	}
	return ": " + strings.Join(p.Schema.Value.Type.Slice(), " or ") + " is wanted"
}

func schemaDefects(base string, err error) []fault.Field {
	switch e := err.(type) { //nolint:errorlint // as in defectsOf
	case openapi3.MultiError:
		var all []fault.Field
		for _, one := range e {
			all = append(all, schemaDefects(base, one)...)
		}
		return all
	case *openapi3.SchemaError:
		for _, part := range e.JSONPointer() {
			base += "/" + escape(part)
		}
		if unknown, ok := unknownMember(e); ok {
			base += "/" + escape(unknown)
		}
		return []fault.Field{{Pointer: base, Detail: explain(e)}}
	default:
		return []fault.Field{{Pointer: base, Detail: "does not fit the contract"}}
	}
}

// unknownMember is the name of a member that the contract does not have. The validator points at the object around it and has the
// name in its words only.
func unknownMember(err *openapi3.SchemaError) (string, bool) {
	if err.SchemaField != "properties" && err.SchemaField != "additionalProperties" {
		return "", false
	}
	quoted, ok := strings.CutSuffix(strings.TrimPrefix(err.Reason, "property "), " is unsupported")
	if !ok {
		return "", false
	}
	name, unquoteErr := strconv.Unquote(quoted)
	return name, unquoteErr == nil
}

// explain words the rules that people break most; the validator's own reasons never hold the value.
func explain(err *openapi3.SchemaError) string {
	switch err.SchemaField {
	case "required":
		return "is required"
	case "properties", "additionalProperties":
		return "is not a member that is known here"
	case "enum":
		return fmt.Sprintf("is not one of %v", err.Schema.Enum)
	case "format":
		return "is not a valid " + err.Schema.Format
	case "pattern":
		return "does not match " + err.Schema.Pattern
	default:
		return err.Reason
	}
}

// escape encodes a part of a JSON pointer (RFC 6901), and cuts what is absurdly long.
func escape(part string) string {
	if len(part) > 100 {
		part = part[:100] + "…"
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(strings.ToValidUTF8(part, "?"))
}
