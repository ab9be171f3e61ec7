package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheVisibilityDatabaseLiesBesideTheMainOne(t *testing.T) {
	t.Parallel()
	both, err := parseDatabases("postgres://admin:p%40ss@127.0.0.1:5432/temporal?sslmode=disable")
	require.NoError(t, err)
	require.Equal(t, "temporal", both.main.DatabaseName)
	require.Equal(t, "temporal_visibility", both.visibility.DatabaseName)
	require.Equal(t, "127.0.0.1:5432", both.visibility.ConnectAddr)
	require.Equal(t, "p@ss", both.main.Password)
}

func TestAPasswordIsNeverPartOfAnError(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"postgres://admin:secret@host:bad/x", "postgres://admin:secret@host", "secret"} {
		_, err := parseDatabases(address)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Setenv(databaseVariable, "postgres://admin:secret@host:1/x")
	for _, args := range [][]string{{"-listen", "everywhere"}, {"extra"}, {"-port", "x"}} {
		_, err := parse(args)
		require.Error(t, err, args)
	}
	opts, err := parse([]string{"-port", "9000"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9000", opts.address(opts.port))
}
