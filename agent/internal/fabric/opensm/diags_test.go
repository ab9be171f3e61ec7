package opensm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/smp"
)

// smpdump sends its datagrams on the subnet.
func (s subnet) smpdump(t *testing.T) func(ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	return func(ctx context.Context, args ...string) *exec.Cmd {
		cmd, err := s.Subnet.Command(ctx, s.Subnet.ManagerPort(), "smpdump", args...)
		require.NoError(t, err)
		return cmd
	}
}

func TestPortsAreReadBySmpdumpWhereOurOwnReaderCannotBeUsed(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 3, 1)
	options := filepath.Join(t.TempDir(), "ibdiag.conf")
	transport, err := smp.NewDiags(s.smpdump(t), 0x1234, options)
	require.NoError(t, err)
	secret, err := os.Stat(options)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), secret.Mode().Perm())
	client := smp.NewClient(transport, 0)
	defer func() { require.NoError(t, client.Close()) }()
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Client = client })
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	applied, err := driver.Apply(ctx, desired, 1)
	require.NoError(t, err)
	require.Empty(t, applied.Unsettled)
	requireAll(ctx, t, driver, desired, s.ports)
	requireAll(ctx, t, s.Driver, desired, s.ports)

	// smpdump prints zeros where nothing answers, and ends well: that must not look like an empty table.
	require.NoError(t, s.Subnet.Cut(ctx, s.ports[0]))
	links, err := driver.Observe(ctx, s.ports[:1])
	require.NoError(t, err)
	require.False(t, links[0].HCA.Readable)
	require.NotEmpty(t, fabric.NewJudge(set()).Disagreement(links[0]), "what cannot be read is not clear")
	_, err = client.HasPath(ctx, 1, s.ports[0], s.ports[1])
	require.ErrorContains(t, err, "nothing else")
}
