package nvme

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

// TestADriveOfThisMachineIsWiped erases what LEASEHOLD_ERASE_DRIVE names, e.g. nvme0. It is for virtual machines: `make demo NODES=qemu` does
// the same through the whole product.
func TestADriveOfThisMachineIsWiped(t *testing.T) {
	t.Parallel()
	name := os.Getenv("LEASEHOLD_ERASE_DRIVE")
	if name == "" {
		t.Skip("LEASEHOLD_ERASE_DRIVE names no drive that may be erased")
	}
	drives, err := List("/")
	require.NoError(t, err)
	for _, d := range drives {
		if d.Name() != name {
			continue
		}
		row := Wipe(t.Context(), d, d.Name(), time.Now)
		t.Logf("%+v", row)
		require.Equal(t, protocol.Wiped, row.Status)
		return
	}
	t.Fatalf("there is no drive %s", name)
}
