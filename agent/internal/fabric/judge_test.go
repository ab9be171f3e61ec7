package fabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

func link(port protocol.GUID, hca, sw []protocol.PKey) protocol.LinkState {
	return protocol.LinkState{
		GUID: port, HCA: protocol.PortTable{GUID: port, Readable: true, Keys: hca}, Switch: protocol.PortTable{Readable: true, Keys: sw},
	}
}

func TestBothEndsMustHoldExactlyWhatTheyShould(t *testing.T) {
	t.Parallel()
	type keys = []protocol.PKey
	good := keys{0x8005, 0x7fff}
	judge := fabric.NewJudge(fabric.Desired{
		Partitions: []protocol.Partition{lease(5, 1)}, Managed: fabric.Range{Low: 1, High: 0x0fff},
	})
	for name, c := range map[string]struct {
		port    protocol.GUID
		hca, sw keys
		fault   string
	}{
		"a member": {1, good, good, ""},
		"a member whose switch has another order":       {1, good, keys{0x7fff, 0, 0x8005}, ""},
		"a member with a foreign key as well":           {1, keys{0x8005, 0x7fff, 0xa000}, good, ""},
		"a stranger":                                    {2, keys{0x7fff}, keys{0x7fff}, ""},
		"a stranger with an old hole":                   {2, keys{0, 0x7fff}, keys{0x7fff}, ""},
		"not at index 0":                                {1, keys{0x7fff, 0x8005}, good, "HCA port: index 0 holds 0x7fff, want 0x8005"},
		"limited member":                                {1, keys{0x0005, 0x7fff}, good, "HCA port: 0x8005 is missing"},
		"limited as well":                               {1, keys{0x8005, 0x7fff, 0x0005}, good, "HCA port: holds 0x0005, which it should not"},
		"not yet joined":                                {1, keys{0x7fff}, keys{0x7fff}, "HCA port: 0x8005 is missing"},
		"not yet joined at the switch":                  {1, good, keys{0x7fff}, "switch port: 0x8005 is missing"},
		"not yet revoked":                               {2, good, keys{0x7fff}, "HCA port: holds 0x8005, which it should not"},
		"not yet revoked at the switch":                 {2, keys{0x7fff}, good, "switch port: holds 0x8005, which it should not"},
		"another tenant's key":                          {1, keys{0x8005, 0x7fff, 0x8006}, good, "HCA port: holds 0x8006, which it should not"},
		"full in the default partition":                 {2, keys{0xffff}, keys{0x7fff}, "HCA port: 0x7fff is missing"},
		"full in the default partition too":             {2, keys{0x7fff, 0xffff}, keys{0x7fff}, "HCA port: full member of the default partition"},
		"full in the default partition at the switch":   {2, keys{0x7fff}, keys{0x7fff, 0xffff}, "switch port: full member of the default partition"},
		"an empty table cannot be what it should be":    {1, nil, good, "HCA port: 0x7fff is missing"},
		"an empty table of a stranger is not right yet": {2, nil, nil, "HCA port: 0x7fff is missing"},
	} {
		require.Equal(t, c.fault, judge.Disagreement(link(c.port, c.hca, c.sw)), name)
	}
}

func TestUnknownIsNeverClear(t *testing.T) {
	t.Parallel()
	judge := fabric.NewJudge(desired())
	silent := link(1, []protocol.PKey{0x7fff}, []protocol.PKey{0x7fff})
	silent.HCA.Readable = false
	require.Equal(t, "HCA port: could not be read", judge.Disagreement(silent))
	silent.HCA.Readable, silent.Switch.Readable = true, false
	require.Equal(t, "switch port: could not be read", judge.Disagreement(silent))
}

func TestForeignPartitionsAreListedOnce(t *testing.T) {
	t.Parallel()
	judge := fabric.NewJudge(fabric.Desired{Managed: fabric.Range{Low: 1, High: 0x0fff}})
	require.Equal(t, []protocol.PKey{0x1000, 0x2000}, judge.Foreign([]protocol.LinkState{
		link(1, []protocol.PKey{0x7fff, 0xa000, 0x8005}, []protocol.PKey{0x1000}), link(2, []protocol.PKey{0xffff, 0x2000}, nil),
	}))
}
