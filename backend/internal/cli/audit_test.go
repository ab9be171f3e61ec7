package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chain is what a server exported.
const chain = `{"seq":1,"previous":"","id":"audit_1","organization_id":"","at":"2026-03-01T12:00:00Z","actor":"platform","action":"a.b","target":"t"`

func TestAnExportThatWasChangedOrCutIsNotWhole(t *testing.T) { //nolint:paralleltest // the environment is the process's
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const hash = "d4ec5da24aad2ecbbcb4e5ffb4ccd4a60d4ad4ac4ee95bf1a4a9d48ee3e0a9bf"
	whole := chain + `,"hash":"` + hashOfLine(chain+"}") + `"}` + "\n"
	out, _, err := run(t, "http://127.0.0.1:1", "audit", "verify", write(whole))
	require.NoError(t, err)
	require.Contains(t, out, "1 events, numbers 1 to 1: whole")
	for _, text := range []string{
		strings.Replace(whole, "a.b", "a.c", 1), whole + whole, chain + `,"hash":"` + hash + `"}`, "{}\n", whole[:40], strings.Replace(whole, `"}`+"\n", `","actor":"me"}`, 1),
	} {
		_, _, err := run(t, "http://127.0.0.1:1", "audit", "verify", write(text))
		require.Equal(t, ExitUnhealthy, ExitStatus(err), text)
	}
}

func hashOfLine(line string) string {
	sum := sha256.Sum256([]byte(line))
	return hex.EncodeToString(sum[:])
}
