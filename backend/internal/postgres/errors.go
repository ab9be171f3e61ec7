package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"github.com/leasehold/leasehold/backend/fault"
)

// translate turns the database's errors into faults, once, at the edge. Faults pass through unchanged.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var known *fault.Fault
	if errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return translateCode(err, pg)
	case errors.Is(err, gorm.ErrRecordNotFound), errors.Is(err, pgx.ErrNoRows):
		return fault.New(fault.NotFound, "not-found", "there is no such thing%w", hidden{err})
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case pgconn.Timeout(err), pgconn.SafeToRetry(err):
		return fault.New(fault.Unavailable, "database-unavailable", "the database does not answer, try again%w", hidden{err})
	default:
		return err
	}
}

func translateCode(err error, pg *pgconn.PgError) error {
	constraint := strings.ReplaceAll(pg.ConstraintName, "_", "-")
	switch pg.Code {
	case "23P01": // exclusion_violation
		return fault.New(fault.Conflict, "overlap", "this capacity is taken for part of that time%w", hidden{err}).With("constraint", constraint)
	case "23505": // unique_violation
		return fault.New(fault.Conflict, "duplicate", "it exists already%w", hidden{err}).With("constraint", constraint)
	case "23503": // foreign_key_violation
		return fault.New(fault.Conflict, "reference", "it refers to something that is not there%w", hidden{err}).With("constraint", constraint)
	case "23514": // check_violation
		return fault.New(fault.Conflict, constraint, "a rule of the database refuses it%w", hidden{err}).With("constraint", constraint)
	case "40P01", "40001": // deadlock_detected, serialization_failure
		return fault.New(fault.Unavailable, "retry", "too many at once, try again%w", hidden{err})
	case "57P01", "57P02", "57P03", "53300": // shutting down, starting up, too many connections
		return fault.New(fault.Unavailable, "database-unavailable", "the database does not answer, try again%w", hidden{err})
	default:
		return err
	}
}

// hidden keeps a cause in the chain for logs and errors.As, and out of the words that people see.
type hidden struct{ cause error }

func (h hidden) Error() string { return "" }
func (h hidden) Unwrap() error { return h.cause }
