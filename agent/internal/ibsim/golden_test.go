package ibsim_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
)

var update = flag.Bool("update", false, "write the golden files anew") //nolint:gochecknoglobals // a flag

// The importer of topologies (backend/inventory/netdiscover) reads these files, so that what is written here and what is read there
// cannot drift apart.
func TestTheGoldenNetlistIsWhatIsWritten(t *testing.T) {
	t.Parallel()
	topology := ibsimtest.FatTree(6, 3)
	text, err := ibsim.NetlistText(topology)
	require.NoError(t, err)
	want, err := json.MarshalIndent(topology, "", "\t")
	require.NoError(t, err)
	for name, body := range map[string]string{"fat-tree.netlist": text, "fat-tree.json": string(want) + "\n"} {
		path := filepath.Join("testdata", name)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(body), 0o600))
		}
		golden, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(golden), body, "go test ./agent/internal/ibsim -run TestTheGoldenNetlistIsWhatIsWritten -update")
	}
}
