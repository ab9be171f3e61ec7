package httpapi

import (
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/money"
)

// idFromPath reads an id out of the path or query. A malformed one is not found, as is another organization's: nothing tells
// them apart.
func idFromPath[T any, P interface {
	*T
	UnmarshalText(b []byte) error
	IsZero() bool
}](s string) (T, error) {
	id, err := ids.Read[T, P](s)
	if err != nil || P(&id).IsZero() {
		return id, fault.New(fault.NotFound, "not-found", "there is nothing with that id")
	}
	return id, nil
}

// idFromBody reads an id that the body names at the JSON pointer. A malformed one is Invalid.
func idFromBody[T any, P interface {
	*T
	UnmarshalText(b []byte) error
	IsZero() bool
}](s, pointer string) (T, error) {
	id, err := ids.Read[T, P](s)
	if err != nil || P(&id).IsZero() {
		return id, fault.New(fault.Invalid, "invalid-request", "the request has defects").At(pointer, "is not an id of this kind")
	}
	return id, nil
}

func newMoneyView(a money.Amount) api.Money {
	return api.Money{Amount: a.Minor, Currency: string(a.Currency)}
}

func newWindowView(start, end time.Time) api.Window {
	return api.Window{Start: start.UTC(), End: end.UTC()}
}

// orNil returns nil for the zero value, which the JSON leaves out.
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// orZero returns what p points to, or the zero value.
func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// orElse returns what p points to, or def.
func orElse[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// each maps a slice; the answer is never nil, so that an empty list is [] in JSON and not null.
func each[In, Out any](in []In, view func(In) Out) []Out {
	out := make([]Out, len(in))
	for i, v := range in {
		out[i] = view(v)
	}
	return out
}
