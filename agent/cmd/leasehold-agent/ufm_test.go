package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

func secret(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
	return path
}

func TestAFabricAgentDrivesAUFM(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	topology := ibsimtest.FatTree(2, 2)
	server := ufmtest.New(t, ufmtest.Options{Topology: topology})
	stop := start(t, "fabric", "--driver", "ufm", "--server", plane.URL, "--token-file", tokenFile(t), "--state-dir", t.TempDir(), "--name", "ib-1",
		"--ufm-url", server.URL(), "--ufm-ca-file", server.CAFile(), "--ufm-token-file", secret(t, ufmtest.Token, 0o600),
		"--ufm-port", ufmtest.ManagerPort.String(), "--ufm-accept-word")
	report := plane.AwaitInventory(t, "ib-1").Fabric
	require.Equal(t, "ufm", report.Controller.Driver)
	require.Len(t, report.Topology.Ports, len(topology.Ports))
	member := topology.Ports[0].GUID
	result := plane.Do(t, "ib-1", protocol.Operation{
		ID: "op1", Kind: protocol.ApplyPartitions, Epoch: 1,
		Spec: protocol.Raw(`{"nonce":"n","partitions":[{"pkey":"0x0005","name":"lease-a","members":["` + member.String() + `"]}],"managed_low":"0x0001","managed_high":"0x3fff"}`),
	})
	require.Equal(t, protocol.Succeeded, result.State, result.Fault)
	plane.Verify(t, "ib-1", result)
	require.Equal(t, []protocol.GUID{member}, server.Members(5))
	require.NoError(t, stop())
}

func TestWrongFlagsOfUFMAreNamedWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	const hidden = "hunter2hunter2"
	good := []string{"fabric", "--driver", "ufm", "--server", "http://127.0.0.1:1", "--name", "ib-1", "--ufm-url", "https://127.0.0.1:1", "--ufm-port", "0x2c9ffff000001"}
	for complaint, more := range map[string][]string{
		"--ufm-accept-word":           {"--ufm-token-file", secret(t, hidden, 0o600)},
		"mode 0600":                   {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o640)},
		"one line":                    {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden+"\n"+hidden, 0o600)},
		"give one of":                 {"--ufm-accept-word"},
		"a user needs":                {"--ufm-accept-word", "--ufm-user", "x"},
		"https://host":                {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o600), "--ufm-url", "https://u:" + hidden + "@h"},
		"its address must be https":   {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o600), "--ufm-url", "http://h"},
		"--ufm-port":                  {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o600), "--ufm-port", "mlx5_0"},
		"has no partitions file":      {"--partitions-file", "/x"},
		"--driver is":                 {"--driver", "sm"},
		"needs --partitions-file":     {"--driver", "opensm"},
		"umad":                        {"--device", "/dev/no-umad", "--ufm-token-file", secret(t, hidden, 0o600)},
		"holds no certificate":        {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o600), "--ufm-ca-file", secret(t, "x", 0o600)},
		"a client certificate needs":  {"--ufm-accept-word", "--ufm-cert-file", "/x"},
		"no such file":                {"--ufm-accept-word", "--ufm-token-file", "/does/not/exist"},
		"port GUID of UFM's own host": {"--ufm-accept-word", "--ufm-token-file", secret(t, hidden, 0o600), "--ufm-port", "0"},
	} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append(append([]string{}, good...), append(more, "--state-dir", t.TempDir())...))
		err := cmd.ExecuteContext(t.Context())
		require.ErrorContains(t, err, complaint)
		require.NotContains(t, err.Error()+out.String(), hidden, complaint)
	}
}
