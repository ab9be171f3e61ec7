package postgres

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// insertBatch is how many rows go into one statement, which takes 65,535 parameters at most.
const insertBatch = 1_000

// slotRange is an int4range column with bounds '[)'.
type slotRange lease.Slots

// Value implements driver.Valuer: the range's text form.
func (r slotRange) Value() (driver.Value, error) { return fmt.Sprintf("[%d,%d)", r.From, r.To), nil }

// Scan implements sql.Scanner.
func (r *slotRange) Scan(src any) error {
	low, high, err := rangeBounds(src)
	if err != nil {
		return fmt.Errorf("scan slots: %w", err)
	}
	if r.From, err = strconv.Atoi(low); err != nil {
		return fmt.Errorf("scan slots: %w", err)
	}
	if r.To, err = strconv.Atoi(high); err != nil {
		return fmt.Errorf("scan slots: %w", err)
	}
	return nil
}

// timeRange is a tstzrange column with bounds '[)', both of them finite.
type timeRange lease.Window

// instantForm is how PostgreSQL writes an instant in a session whose time zone is UTC.
const instantForm = "2006-01-02 15:04:05.999999-07"

// Value implements driver.Valuer: the range's text form.
func (r timeRange) Value() (driver.Value, error) {
	return `["` + r.Start.UTC().Format(instantForm) + `","` + r.End.UTC().Format(instantForm) + `")`, nil
}

// Scan implements sql.Scanner.
func (r *timeRange) Scan(src any) error {
	low, high, err := rangeBounds(src)
	if err != nil {
		return fmt.Errorf("scan window: %w", err)
	}
	if r.Start, err = scanInstant(low); err != nil {
		return err
	}
	r.End, err = scanInstant(high)
	return err
}

func scanInstant(s string) (time.Time, error) {
	at, err := time.Parse(instantForm, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("scan instant: %w", err)
	}
	return at.UTC(), nil
}

// rangeBounds cuts a range's text form, e.g. [0,8) or ["2026-01-01 00:00:00+00","2026-02-01 00:00:00+00").
func rangeBounds(src any) (string, string, error) {
	text, ok := src.(string)
	if !ok {
		return "", "", fmt.Errorf("unexpected %T", src)
	}
	inner, opened := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, ")")
	low, high, parted := strings.Cut(inner, ",")
	if !opened || !closed || !parted {
		return "", "", fmt.Errorf("%q is not a half-open range", text)
	}
	return strings.Trim(low, `"`), strings.Trim(high, `"`), nil
}

// document is a jsonb column that holds a T.
type document[T any] struct{ Of T }

// Value implements driver.Valuer.
func (d document[T]) Value() (driver.Value, error) {
	body, err := json.Marshal(d.Of)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return string(body), nil
}

// Scan implements sql.Scanner. NULL is the zero T.
func (d *document[T]) Scan(src any) error {
	var zero T
	d.Of = zero
	switch v := src.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(v), &d.Of)
	case []byte:
		return json.Unmarshal(v, &d.Of)
	default:
		return fmt.Errorf("scan document: unexpected %T", src)
	}
}

// nullable returns nil, which is stored as NULL, for the zero instant.
func nullable(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// instant is the way back: the zero instant for NULL, always in UTC.
func instant(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.UTC()
}

// uuidTexts writes ids for an array parameter.
func uuidTexts[K ids.Kind](all []ids.ID[K]) []string {
	return each(all, func(id ids.ID[K]) string { return pgtype.UUID{Bytes: id.UUID(), Valid: true}.String() })
}
