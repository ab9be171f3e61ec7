// Package fault is the vocabulary of failure. The domain returns faults; each edge (HTTP, agents, workflows, CLI)
// translates them once, by Kind, into its own terms.
package fault

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Kind says what sort of failure it is, which decides what a caller may do about it.
type Kind string

const (
	// Invalid: the request can never succeed as it is written (HTTP 422).
	Invalid Kind = "invalid"
	// Unauthenticated: who is asking could not be established (401).
	Unauthenticated Kind = "unauthenticated"
	// Unfunded: the money or budget does not suffice (402).
	Unfunded Kind = "unfunded"
	// Forbidden: known who asks, and they may not (403).
	Forbidden Kind = "forbidden"
	// NotFound: no such thing, or it belongs to another organization (404). The two are never told apart.
	NotFound Kind = "not_found"
	// Conflict: the present state forbids it, another try with fresh state may pass (409).
	Conflict Kind = "conflict"
	// Expired: it was valid once and will not be again (410).
	Expired Kind = "expired"
	// Stale: the caller's version of the resource is not the current one (412).
	Stale Kind = "stale"
	// Exhausted: a rate or quota is used up for now (429).
	Exhausted Kind = "exhausted"
	// Unavailable: something we depend on is not there now, a retry may pass (503).
	Unavailable Kind = "unavailable"
	// Internal: our own defect (500). Its detail is logged and never shown.
	Internal Kind = "internal"
)

// Kinds lists every kind; an edge's table test ranges over it so that none is forgotten.
func Kinds() []Kind {
	return []Kind{
		Invalid, Unauthenticated, Unfunded, Forbidden, NotFound, Conflict, Expired, Stale, Exhausted, Unavailable, Internal,
	}
}

// Field is one defect of the input. Pointer is a JSON pointer (RFC 6901) into the request body, e.g. "/nodes".
type Field struct {
	Pointer string
	Detail  string
}

// Fault is an error with a kind, a stable code and words for a person.
type Fault struct {
	Kind Kind
	// Code is stable and machine-readable, e.g. "quote-expired". It becomes the problem type.
	Code string
	// Detail is safe to show to the caller.
	Detail string
	Fields []Field
	// Facts are numbers and names that explain the refusal, e.g. {"available_minor": 1200}. Safe to show.
	Facts map[string]any
	cause error
}

// New makes a fault. The code is kebab-case and stable; detail is a sentence for a person.
func New(kind Kind, code, format string, args ...any) *Fault {
	err := fmt.Errorf(format, args...)
	return &Fault{Kind: kind, Code: code, Detail: err.Error(), cause: errors.Unwrap(err)}
}

// Error implements error.
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.Detail)
	for _, field := range f.Fields {
		fmt.Fprintf(&b, "; %s: %s", field.Pointer, field.Detail)
	}
	return b.String()
}

// Unwrap returns the cause given with %w, if any.
func (f *Fault) Unwrap() error { return f.cause }

// With returns the fault with one more fact.
func (f *Fault) With(name string, value any) *Fault {
	next := *f
	next.Facts = make(map[string]any, len(f.Facts)+1)
	maps.Copy(next.Facts, f.Facts)
	next.Facts[name] = value
	return &next
}

// At returns the fault with one more defective field.
func (f *Fault) At(pointer, detail string) *Fault {
	next := *f
	next.Fields = append(append([]Field(nil), f.Fields...), Field{Pointer: pointer, Detail: detail})
	return &next
}

// KindOf returns the kind of the first fault in err's chain; Internal for any other error, "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var f *Fault
	if errors.As(err, &f) {
		return f.Kind
	}
	return Internal
}

// Is reports whether err is a fault of that kind.
func Is(err error, kind Kind) bool { return KindOf(err) == kind }

// CodeOf returns the code of the first fault in err's chain, or "".
func CodeOf(err error) string {
	var f *Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}
