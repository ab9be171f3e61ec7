package main

import (
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/rdma"
)

func slicesOf(t *testing.T, flags ...string) *sliceOptions {
	t.Helper()
	var s sliceOptions
	cmd := &cobra.Command{}
	s.bind(cmd)
	require.NoError(t, cmd.ParseFlags(flags))
	s.stateDir, s.hostRoot = t.TempDir(), "/"
	return &s
}

func TestAHostWithoutImagesIsNotLeasedInParts(t *testing.T) {
	t.Parallel()
	door, runtime, err := slicesOf(t).tenants(t.Context(), common{}, gpu.Absent{}, rdma.NewSysfs(t.TempDir(), now), "host", now)
	require.NoError(t, err)
	require.Nil(t, door)
	require.Nil(t, runtime)
}

func TestTenantsHaveNoWayOutUnlessOneIsNamed(t *testing.T) {
	t.Parallel()
	egress, err := slicesOf(t, "--name-server", "garbage").wayOut()
	require.NoError(t, err)
	require.Empty(t, egress.Interface)

	egress, err = slicesOf(t, "--egress", "eth0", "--name-server", "9.9.9.9").wayOut()
	require.NoError(t, err)
	require.Equal(t, "eth0", egress.Interface)
	closed := map[string]bool{}
	for _, network := range egress.Closed {
		closed[network.String()] = true
	}
	for _, private := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"} {
		require.True(t, closed[private], "%s is the operator's, and open", private)
	}
	for _, flags := range [][]string{
		{"--egress", "eth0", "--name-server", "garbage"},
		{"--egress", "eth0", "--egress-pool", "garbage"},
		{"--egress", "eth0", "--egress-closed", "fe80::/10"},
		{"--egress", "eth0; flush ruleset"},
		{"--egress", `eth0"`},
		{"--egress", "an-interface-of-too-long-a-name"},
		{"--egress", "eth0", "--egress-pool", "10.0.0.0/28"},
	} {
		_, err := slicesOf(t, flags...).wayOut()
		require.Error(t, err, flags)
	}
}

func TestDescriptionsOfDevicesAreTheAgentsOwnOrTheOperators(t *testing.T) {
	t.Parallel()
	adapters := rdma.NewSysfs(t.TempDir(), now)
	config, err := slicesOf(t, "--images", "i", "--cdi-refresh", "/opt/describe --all").config(gpu.Absent{}, adapters, now)
	require.NoError(t, err)
	require.Equal(t, []string{"/opt/describe", "--all"}, config.CDIRefresh)
	require.Equal(t, []string{"/etc/cdi", "/var/run/cdi"}, config.CDIDirs)
	config, err = slicesOf(t, "--images", "i", "--cdi-refresh", "-").config(gpu.Absent{}, adapters, now)
	require.NoError(t, err)
	require.Empty(t, config.CDIRefresh)
	dir := filepath.Join(t.TempDir(), "disks")
	config, err = slicesOf(t, "--images", "i", "--tenants-dir", dir).config(gpu.Absent{}, adapters, now)
	require.NoError(t, err)
	require.Equal(t, dir, config.Dir)
	machine, err := config.Machine(t.Context())
	require.NoError(t, err)
	require.Empty(t, machine.Bays)
}
