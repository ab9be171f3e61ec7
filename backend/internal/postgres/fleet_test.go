package postgres

import "testing"

func TestAgentAndIsolationRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, agentRow{}, enrollmentTokenRow{}, stepRow{}, operationRow{}, partitionRow{}, partitionMemberRow{}, attestationRow{})
}
