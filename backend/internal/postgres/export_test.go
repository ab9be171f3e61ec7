package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/backend/ids"
)

// WhoAmI tells role and organization of the transaction, once through GORM and once through pgx, which must agree.
func (db *DB) WhoAmI(ctx context.Context) (string, string, error) {
	var orm, direct struct {
		Role string
		Org  ids.Org
	}
	if err := conn(ctx).Raw("SELECT current_user AS role, current_org() AS org").Scan(&orm).Error; err != nil {
		return "", "", err
	}
	err := raw(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT current_user, current_org()::text").Scan(&direct.Role, &direct.Org)
	})
	if err == nil && orm != direct {
		panic("GORM and pgx are not in the same transaction")
	}
	return orm.Role, orm.Org.String(), err
}

// AsPlatform is asPlatform.
func (db *DB) AsPlatform(ctx context.Context, fn func(ctx context.Context) error) error {
	return db.asPlatform(ctx, fn)
}

// WhoWillBe makes a handle now, and tells the role of a statement that is sent by it later.
func (db *DB) WhoWillBe(ctx context.Context) func() string {
	handle := conn(ctx)
	return func() string {
		var role string
		handle.Raw("SELECT current_user").Scan(&role)
		return role
	}
}

// ExecSimple sends statements as text, in one message.
func (db *DB) ExecSimple(ctx context.Context, sql string) error {
	return raw(ctx, func(conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	})
}

// Count counts a table's rows.
func (db *DB) Count(ctx context.Context, table string) (int, error) {
	var n int
	err := conn(ctx).Raw("SELECT count(*) FROM " + table).Scan(&n).Error
	return n, err
}
