package postgres

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm/schema"

	"github.com/leasehold/leasehold/backend/internal/pgtest"
)

// requireColumns fails unless each row struct has exactly its table's columns: one too few would be lost on a write, one too many
// fails in production only.
func requireColumns(t *testing.T, rows ...schema.Tabler) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	pool := pgtest.New(t).Pool(t)
	for _, row := range rows {
		parsed, err := schema.Parse(row, &sync.Map{}, schema.NamingStrategy{})
		require.NoError(t, err)
		found, err := pool.Query(ctx, "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1", row.TableName())
		require.NoError(t, err)
		columns, err := pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(t, err)
		require.ElementsMatch(t, columns, parsed.DBNames, row.TableName())
	}
}

func TestLeaseAndAllocationRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, leaseRow{}, segmentRow{}, leaseSSHKeyRow{}, leaseEventRow{}, allocationRow{})
}

func TestMarketRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, instanceTypeRow{}, priceVersionRow{}, siteRow{}, fabricRow{}, switchRow{}, nodeRow{}, gpuRow{}, hcaPortRow{}, nodeConditionRow{},
		inventoryChangeRow{})
}

func TestWatchRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, driftRow{}, auditRow{}, partitionRow{}, partitionMemberRow{})
}

func TestPowerRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, machineRow{}, bootTicketRow{}, diskImageRow{})
}
