package opensm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// OpenSM's own parser is the judge of what a file of the strict form means: whatever random partitions are written, limited
// members, foreign ones and several per port included, the ports must end up with exactly those.
func TestOpenSMReadsTheStrictFormAsWeDo(t *testing.T) {
	t.Parallel()
	ibsimtest.Tools(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	topology := ibsimtest.FatTree(8, 1)
	s, err := Simulate(ctx, topology, t.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var ports []protocol.GUID
	for _, port := range topology.Ports {
		ports = append(ports, port.GUID)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 15 {
		f := randomFile(random, ports)
		require.NoError(t, writeFile(s.config.PartitionsFile, f))
		require.NoError(t, s.signal(ctx))
		require.Eventually(t, func() bool { return s.difference(ctx, t, f, ports) == "" }, 20*time.Second, 5*time.Millisecond,
			"round %d: %v", round, f)
	}
	require.False(t, s.Subnet.Complaints())
}

func randomFile(random *rand.Rand, ports []protocol.GUID) file {
	var f file
	for _, key := range random.Perm(0x7ffd)[:random.IntN(12)] {
		p := partition{Name: fmt.Sprintf("p-%d", key), PKey: protocol.PKey(key + 1), Index0: random.IntN(2) == 0, IPoIB: random.IntN(4) == 0}
		for _, i := range random.Perm(len(ports))[:1+random.IntN(len(ports))] {
			p.Members = append(p.Members, member{GUID: ports[i], Full: random.IntN(2) == 0})
		}
		f.Partitions = append(f.Partitions, p)
	}
	return f.normal()
}

// difference says which port does not hold what the file says, "" if all do.
func (s *Simulated) difference(ctx context.Context, t *testing.T, f file, ports []protocol.GUID) string {
	t.Helper()
	links, err := s.Observe(ctx, ports)
	require.NoError(t, err)
	for _, link := range links {
		want := []protocol.PKey{protocol.DefaultLimited}
		for _, p := range f.Partitions {
			for _, m := range p.Members {
				if m.GUID == link.GUID && m.Full {
					want = append(want, p.PKey|protocol.FullMember)
				} else if m.GUID == link.GUID {
					want = append(want, p.PKey)
				}
			}
		}
		slices.Sort(want)
		for _, table := range []protocol.PortTable{link.HCA, link.Switch} {
			if got := sortedKeys(table.Keys); !slices.Equal(got, want) {
				return fmt.Sprintf("%v holds %v, the file says %v", link.GUID, got, want)
			}
		}
	}
	return ""
}

func sortedKeys(keys []protocol.PKey) []protocol.PKey {
	return slices.Sorted(func(yield func(protocol.PKey) bool) {
		for _, key := range keys {
			if key != 0 && !yield(key) {
				return
			}
		}
	})
}
