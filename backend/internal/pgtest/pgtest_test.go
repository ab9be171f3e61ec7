package pgtest_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/pgtest"
)

func files() fstest.MapFS {
	return fstest.MapFS{"00001_bed.sql": {Data: []byte("-- +goose Up\nCREATE EXTENSION btree_gist;\nCREATE TABLE bed (name text PRIMARY KEY);\nINSERT INTO bed VALUES ('first');\n")}}
}

func TestTheMigrationsRanInATestsDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewFrom(t, files()).Pool(t)
	var name string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT name FROM bed").Scan(&name))
	require.Equal(t, "first", name)
}

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, other := pgtest.NewFrom(t, files()), pgtest.NewFrom(t, files())
	require.NotEqual(t, one.URL, other.URL)
	_, err := one.Pool(t).Exec(t.Context(), "INSERT INTO bed VALUES ('second')")
	require.NoError(t, err)
	var beds int
	require.NoError(t, other.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM bed").Scan(&beds))
	require.Equal(t, 1, beds)
}

func TestTheProductsMigrationsRun(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool(t)
	var roles int
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT count(*) FROM pg_roles WHERE rolname IN ('leasehold_tenant', 'leasehold_platform')").Scan(&roles))
	require.Equal(t, 2, roles)
}
