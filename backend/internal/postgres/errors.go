package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
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
	case unreachable(err):
		return unavailable(err)
	default:
		return err
	}
}

// unreachable reports whether there was no database to answer, or none any more. Whether what was asked has happened is then not known:
// asking again under the same idempotency key is right.
func unreachable(err error) bool {
	var connect *pgconn.ConnectError
	var network *net.OpError
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone)
}

func unavailable(err error) error {
	return fault.New(fault.Unavailable, "database-unavailable", "the database does not answer, try again%w", hidden{err})
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
	case "57014", "55P03", "25006": // query_canceled (a time-out), lock_not_available, read_only_sql_transaction (a standby)
		return unavailable(err)
	default:
		if slices.Contains([]string{"08", "53", "57"}, pg.Code[:min(2, len(pg.Code))]) {
			return unavailable(err) // connection_exception; insufficient_resources; operator_intervention: it shuts down or starts up
		}
		return err
	}
}

// hidden keeps a cause in the chain for logs and errors.As, and out of the words that people see.
type hidden struct{ cause error }

func (h hidden) Error() string { return "" }
func (h hidden) Unwrap() error { return h.cause }
