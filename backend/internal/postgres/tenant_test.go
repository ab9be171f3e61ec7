package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/pgtest"
)

func TestIdentityAndPlumbingRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, organizationRow{}, userRow{}, membershipRow{}, projectRow{}, sessionRow{}, sessionTokenRow{}, invitationRow{}, groupRow{}, groupMemberRow{}, serviceAccountRow{}, policyRow{}, deviceGrantRow{}, secondFactorRow{}, apiKeyRow{}, sshKeyRow{}, auditEventRow{}, auditLinkRow{},
		idempotencyRow{}, signingKeyRow{}, eventRow{}, endpointRow{}, deliveryRow{}, attemptRow{})
}

// A table that names an organization and has no policy would show everybody's rows, or nobody's.
func TestEveryTableWithAnOrganizationHasATenantPolicy(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool(t)
	rows, err := pool.Query(context.WithoutCancel(t.Context()), `
		SELECT c.relname::text || CASE WHEN c.relrowsecurity THEN '' ELSE ': row-level security is off' END
		       || CASE WHEN p.policyname IS NULL THEN ': no policy binds leasehold_tenant to current_org()' ELSE '' END
		FROM information_schema.columns k
		JOIN pg_class c ON c.relname = k.table_name AND c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		LEFT JOIN pg_policies p ON p.schemaname = 'public' AND p.tablename = k.table_name AND 'leasehold_tenant' = ANY (p.roles)
		     AND p.qual LIKE '%org_id = current_org()%'
		WHERE k.table_schema = 'public' AND k.column_name = 'org_id' AND (NOT c.relrowsecurity OR p.policyname IS NULL)`)
	require.NoError(t, err)
	naked, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, naked)
}

// Market tables have no organization, and the tenant role has no business with them.
func TestTheTenantRoleSeesNoTableWithoutAnOrganization(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool(t)
	rows, err := pool.Query(context.WithoutCancel(t.Context()), `
		SELECT c.relname::text FROM pg_class c
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND c.relname <> 'organization'
		  AND has_table_privilege('leasehold_tenant', c.oid, 'SELECT, INSERT, UPDATE, DELETE')
		  AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'org_id' AND NOT a.attisdropped)`)
	require.NoError(t, err)
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, open)
}
