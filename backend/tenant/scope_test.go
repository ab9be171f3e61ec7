package tenant

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheReadmesTableOfRolesIsTrue(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(readme)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if scope := strings.Trim(strings.TrimSpace(cells[min(1, len(cells)-1)]), "`"); len(cells) == 8 && strings.Contains(scope, ":") {
			rows[scope] = cells[3:7]
		}
	}
	require.Len(t, rows, len(AllScopes()))
	columns := [][]Role{{Owner, Admin}, {Member}, {Billing}, {Viewer}}
	for _, scope := range AllScopes() {
		require.Contains(t, rows, scope, "the README has no row for it")
		for i, roles := range columns {
			for _, role := range roles {
				require.Equal(t, role.Allows(scope, Operator), strings.TrimSpace(rows[scope][i]) == "✓", "%s of %s", scope, role)
			}
		}
	}
}
