package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const passing = `{"Action":"run","Package":"x/lease","Test":"TestA"}
{"Action":"pass","Package":"x/lease","Test":"TestA"}
{"Action":"output","Package":"x/lease","Test":"TestB","Output":"    lease_test.go:12: no OpenSM here\n"}
{"Action":"output","Package":"x/lease","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"x/lease","Test":"TestB"}
{"Action":"pass","Package":"x/lease"}
`

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func TestASkippedTestIsListedWithItsReason(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	ok, err := account(write(t, map[string]string{"go.jsonl": passing}), &out)
	require.NoError(t, err)
	require.True(t, ok)
	require.Contains(t, out.String(), "lease.TestB: no OpenSM here")
	require.Contains(t, out.String(), "\n1 passed, 0 failed, 1 skipped\n")
}

func TestARunIsBadWhen(t *testing.T) {
	t.Parallel()
	for claim, files := range map[string]map[string]string{
		"no test ran":                {},
		"a test failed":              {"go.jsonl": passing + `{"Action":"fail","Package":"x/lease","Test":"TestC"}`},
		"a package does not compile": {"go.jsonl": passing + `{"Action":"fail","Package":"x/bad","FailedBuild":"x/bad"}`},
		"a stage failed":             {"go.jsonl": passing, "failed": "go vet\n"},
		"the portal's test failed": {"portal.vitest.json": `{"testResults":[{"name":"/a/b.test.ts","status":"failed",
			"assertionResults":[{"fullName":"adds","status":"failed"},{"fullName":"subtracts","status":"passed"}]}]}`},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			ok, err := account(write(t, files), &out)
			require.NoError(t, err)
			require.False(t, ok, out.String())
		})
	}
}

func TestAFailedPackageIsCountedOnceWithItsTest(t *testing.T) {
	t.Parallel()
	got, err := readGo(strings.NewReader(`{"Action":"fail","Package":"x/lease","Test":"TestC"}
{"Action":"fail","Package":"x/lease"}`))
	require.NoError(t, err)
	require.Equal(t, 1, got.failed)
}

func TestGarbageIsRefused(t *testing.T) {
	t.Parallel()
	_, err := account(write(t, map[string]string{"go.jsonl": "panic:"}), &strings.Builder{})
	require.Error(t, err)
}
