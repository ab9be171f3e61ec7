package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/idempotency"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/tenant"
)

func TestRecordsAreTheirOrganizationsOwnAndAreForgotten(t *testing.T) {
	t.Parallel()
	db, now := open(t), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	store, orgs := postgres.NewIdempotency(db), postgres.NewTenants(db)
	acme, bolt := ids.Make[ids.Org](), ids.Make[ids.Org]()
	require.NoError(t, db.WithinTx(t.Context(), func(ctx context.Context) error {
		for _, org := range []ids.Org{acme, bolt} {
			err := orgs.CreateOrganization(ctx, tenant.Organization{ID: org, Name: org.String(), Kind: tenant.Customer, Country: "DE", Currency: "EUR", CreatedAt: now})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	record := idempotency.Record{
		Org: acme, Actor: "user", Key: "k", Method: "POST", Path: "/x", BodyHash: []byte{1},
		Answer: idempotency.Answer{Status: 201, Header: map[string]string{"ETag": `"1"`}, Body: []byte("{}")}, CreatedAt: now,
	}
	as := func(org ids.Org) context.Context { return tenant.WithActor(t.Context(), tenant.Actor{Org: org}) }
	claim := record
	claim.Answer = idempotency.Answer{}
	for _, r := range []idempotency.Record{claim, record} { // claimed, then answered
		require.NoError(t, db.WithinTx(as(acme), func(ctx context.Context) error { return store.Save(ctx, r) }))
	}
	require.Error(t, db.WithinTx(as(bolt), func(ctx context.Context) error { return store.Save(ctx, record) }), "row-level security")

	find := func(org ids.Org) (idempotency.Record, bool) {
		var got idempotency.Record
		var found bool
		require.NoError(t, db.WithinTx(as(org), func(ctx context.Context) error {
			var err error
			got, found, err = store.Find(ctx, acme, "user", "k")
			return err
		}))
		return got, found
	}
	got, found := find(acme)
	require.True(t, found)
	require.Equal(t, record, got)
	_, found = find(bolt)
	require.False(t, found)

	gone, err := store.Forget(t.Context(), now, 10)
	require.NoError(t, err)
	require.Zero(t, gone, "half-open: made before, not at")
	gone, err = store.Forget(t.Context(), now.Add(time.Second), 10)
	require.NoError(t, err)
	require.Equal(t, int64(1), gone)
}

func TestOneTransactionAtATimeHasAKey(t *testing.T) {
	t.Parallel()
	db := open(t)
	store := postgres.NewIdempotency(db)
	try := func(key string) bool {
		var free bool
		require.NoError(t, db.WithinTx(t.Context(), func(ctx context.Context) error {
			var err error
			free, err = store.TryLock(ctx, key)
			return err
		}))
		return free
	}
	require.NoError(t, db.WithinTx(t.Context(), func(ctx context.Context) error {
		free, err := store.TryLock(ctx, "k")
		require.True(t, free)
		require.False(t, try("k"))
		require.True(t, try("other"))
		return err
	}))
	require.True(t, try("k"), "free again after the commit")
}
