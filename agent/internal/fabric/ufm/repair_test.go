package ufm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

func repairOf(desired fabric.Desired, ports ...protocol.GUID) fabric.Desired {
	desired.Repair = ports
	return desired
}

func TestARepairDoesNotWaitForWhatWillNotComeByItself(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader, func(c *ufm.Config, _ *ufmtest.Server) { c.Patience.Deadline = time.Hour })
	desired := set(tenant(5, "lease-a", b.ports[0]))
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	b.server.Overwrite(b.ports[0], []protocol.PKey{0x7fff}, nil)
	b.server.Cut(b.ports[1])
	applied, err := b.Apply(t.Context(), repairOf(desired, b.ports...), 1)
	require.NoError(t, err)
	require.Equal(t, b.ports[:1], applied.Repaired, "one that does not answer is left alone")
	require.Empty(t, applied.Unsettled)
	hca, _ := b.server.Held(b.ports[0])
	require.Equal(t, []protocol.PKey{0x8005, 0x7fff}, hca)
	require.Empty(t, b.server.Members(0x7ffe))
}

func TestWhatARepairLeftBehindWhenTheAgentDiedIsTakenAway(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	desired := set(tenant(5, "lease-a", b.ports[0]))
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	file := filepath.Join(b.config.StateDir, "ufm-driver.json")
	var kept map[string]any
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &kept))
	kept["probe"] = "0x7ffe"
	data, err = json.Marshal(kept)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))
	b.server.SetMember(0x7ffe, b.ports[3], false)
	again := b.reopen(t)
	_, err = again.Apply(t.Context(), desired, 2)
	require.NoError(t, err)
	require.Empty(t, b.server.Members(0x7ffe))
	b.server.SetMember(0x7ffe, b.ports[3], false) // now it is somebody else's
	_, err = again.Apply(t.Context(), desired, 3)
	require.NoError(t, err)
	require.Equal(t, b.ports[3:4], b.server.Members(0x7ffe))
}

func TestARepairThatUFMRefusesIsReportedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	desired := set(tenant(5, "lease-a", b.ports[0]))
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	b.server.Overwrite(b.ports[2], []protocol.PKey{0xffff}, nil)
	b.server.Inject(ufmtest.Faults{RefuseWrites: true})
	applied, err := b.Apply(t.Context(), repairOf(desired, b.ports...), 1)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.Equal(t, b.ports[2:3], applied.Unsettled)
	b.server.Inject(ufmtest.Faults{})
	applied, err = b.Apply(t.Context(), repairOf(desired, b.ports...), 1)
	require.NoError(t, err)
	require.Empty(t, applied.Unsettled)
	hca, _ := b.server.Held(b.ports[2])
	require.Equal(t, []protocol.PKey{0x7fff}, hca)
}
