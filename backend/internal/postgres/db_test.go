package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/pgtest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/tenant"
)

func open(t *testing.T) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), pgtest.New(t).URL, 8)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestTheActorDecidesTheDatabaseRole(t *testing.T) {
	t.Parallel()
	db, org := open(t), ids.Make[ids.Org]()
	who := func(ctx context.Context) (role, current string) {
		require.NoError(t, db.WithinTx(ctx, func(ctx context.Context) error {
			var err error
			role, current, err = db.WhoAmI(ctx)
			return err
		}))
		return role, current
	}
	role, current := who(t.Context())
	require.Equal(t, "leasehold_platform", role)
	require.Empty(t, current)

	role, current = who(tenant.WithActor(t.Context(), tenant.Actor{Org: org}))
	require.Equal(t, "leasehold_tenant", role)
	require.Equal(t, org.String(), current)

	role, current = who(tenant.AsPlatform(tenant.WithActor(t.Context(), tenant.Actor{Org: org})))
	require.Equal(t, "leasehold_platform", role)
	require.Empty(t, current, "nothing of the earlier transaction stays on the pooled connection")
}

func TestAccessOutsideATransactionIsRefused(t *testing.T) {
	t.Parallel()
	_, _, err := open(t).WhoAmI(t.Context())
	require.ErrorContains(t, err, "outside WithinTx")
}

func TestEachStatementRunsInTheRoleOfItsMoment(t *testing.T) {
	t.Parallel()
	db, org := open(t), ids.Make[ids.Org]()
	ctx := tenant.WithActor(t.Context(), tenant.Actor{Org: org})
	role := func(ctx context.Context) string {
		as, current, err := db.WhoAmI(ctx)
		require.NoError(t, err)
		require.Equal(t, org.String(), current, "the organization stays, whatever the role")
		return as
	}
	require.NoError(t, db.WithinTx(ctx, func(ctx context.Context) error {
		before := db.WhoWillBe(ctx)
		require.NoError(t, db.AsPlatform(ctx, func(ctx context.Context) error {
			require.Equal(t, "leasehold_platform", role(ctx))
			require.Equal(t, "leasehold_platform", before(), "a handle that was made as the tenant is used as the platform")
			within := db.WhoWillBe(ctx)
			require.NoError(t, db.AsPlatform(ctx, func(context.Context) error { return nil }))
			require.Equal(t, "leasehold_platform", within())
			before = within
			return nil
		}))
		require.Equal(t, "leasehold_tenant", before(), "a handle that was made as the platform is of no use after it")
		require.ErrorIs(t, db.AsPlatform(ctx, func(context.Context) error { return context.Canceled }), context.Canceled)
		require.Equal(t, "leasehold_tenant", role(ctx), "after a failure too")
		require.Panics(t, func() { _ = db.AsPlatform(ctx, func(context.Context) error { panic("once") }) })
		require.Equal(t, "leasehold_tenant", role(ctx), "after a panic too")
		return nil
	}))
}
