package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// fakeAPI answers as the server of an organization that has next to nothing, with lists left out altogether: the worst that a script
// can meet. Requests are noted as "METHOD /path".
type fakeAPI struct {
	*httptest.Server
	asked []string
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	fake := &fakeAPI{}
	lease := `{"id": "lease_1", "state": "active", "end": "` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"}`
	answers := []struct {
		path   string
		status int
		body   string
	}{
		{`GET /v1/leases/lease_1/nodes`, 200, `{"items": [{"node": "gpu-1", "allocation_id": "alloc_1"}]}`},
		{`GET /v1/leases/lease_1/events`, 200, `{"items": [{"seq": 1, "type": "isolation.attested", "data": {"request": "1", "attestation": "att_1"}}]}`},
		{`GET /v1/leases/lease_1/isolation`, 200, `{"applies": true, "attestations": [{"id": "att_1", "verdict": "isolated"}]}`},
		{`GET /v1/leases/lease_1/metrics`, 200, `{}`},
		{`POST /v1/leases/lease_1/attestations`, 202, `{"lease_id": "lease_1", "request": 1}`},
		{`POST /v1/leases/lease_1/extensions`, 201, `{}`},
		{`POST /v1/leases/lease_1/cancellation`, 202, `{}`},
		{`GET /v1/leases/lease_\d`, 200, lease},
		{`GET /v1/leases/closed`, 200, strings.Replace(lease, "active", "closed", 1)},
		{`POST /v1/leases`, 201, lease},
		{`POST /v1/admin/fabrics/fabric_1/topology-imports`, 200, `{"format": "netlist", "digest": "sha256:0"}`},
		{`POST /v1/admin/nodes/node_\w+/changes`, 200, `{}`},
		{`POST /v1/quotes`, 201, `{"id": "quote_1"}`},
		{`POST /v1/availability/search`, 200, `{}`},
		{`POST /v1/billing/top-ups`, 201, `{"state": "succeeded", "amount": {"amount": 1, "currency": "USD"}}`},
		{`POST /v1/(ssh|api)-keys`, 201, `{"id": "key_1"}`},
		{`POST /v1/me/second-factor(/confirmation)?`, 201, `{"secret": "ABC"}`},
		{`POST /v1/me/second-factor/removal`, 204, ``},
		{`POST /v1/sessions`, 201, `{"access_token": "t", "me": {}}`},
		{`GET /v1/admin/nodes`, 200, `{"items": [{"id": "node_1", "name": "gpu-1", "site": "fra1"}]}`},
		{`(GET|PUT) /v1/admin/nodes/node_1(/state)?`, 200, `{"node": {"name": "gpu-1"}}`},
		{`GET /v1/admin/fabrics`, 200, `{"items": [{"id": "fabric_1", "name": "ib0", "site": "fra1"}]}`},
		{`POST /v1/admin/fabrics/fabric_1/audits`, 202, `{"asked_at": "2026-03-01T12:00:00Z"}`},
		{`GET /v1/admin/fabrics/fabric_1/audits`, 200, `{"items": [{"id": "op_1", "asked_at": "2026-03-01T12:00:01Z", "verdict": "clean"}]}`},
		{`POST /v1/admin/fabrics/fabric_1/(posture-override|reserved-pkeys|drift-dismissals|manager-ports|managed-pkeys)`, 200, `{}`},
		{`POST /v1/webhook-endpoints(/hook_1/secret-rotations)?`, 201, `{"id": "hook_1", "secret": "whsec_1"}`},
		{`POST /v1/webhook-endpoints/hook_1/tests`, 202, `{"event_id": "evt_1"}`},
		{`POST /v1/webhook-endpoints/hook_1/replays`, 202, `{"deliveries": 1}`},
		{`DELETE .*`, 204, ``},
		{`GET /\.well-known/attestation-keys\.json`, 200, `{"keys": []}`},
		{`PATCH .*`, 200, `{}`},
		{`GET .*`, 200, `{}`},
	}
	fake.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := r.Method + " " + r.URL.Path
		fake.asked = append(fake.asked, request)
		for _, a := range answers {
			if regexp.MustCompile(`^` + a.path + `$`).MatchString(request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, a.body)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(fake.Close)
	return fake
}

func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "leasehold", SilenceUsage: true, SilenceErrors: true}
	Commands(root)
	return root
}

// run is what a shell does.
func run(t *testing.T, server string, args ...string) (out, words string, err error) {
	t.Helper()
	t.Setenv(envServer, server)
	t.Setenv(envAPIKey, "lh_test")
	t.Setenv(envConfig, filepath.Join(t.TempDir(), "credentials.json"))
	root, stdout, stderr := newRoot(), &bytes.Buffer{}, &bytes.Buffer{}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetIn(strings.NewReader("secret\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = root.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

// leaves are all commands that do something, by path.
func leaves(command *cobra.Command) map[string]*cobra.Command {
	found := map[string]*cobra.Command{}
	for _, child := range command.Commands() {
		if !child.HasSubCommands() {
			found[strings.TrimPrefix(child.CommandPath(), "leasehold ")] = child
		}
		maps.Copy(found, leaves(child))
	}
	return found
}

// goodLines has a command line for every command; a test fails for a command without.
func goodLines(t *testing.T) map[string]string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key.pub")
	require.NoError(t, os.WriteFile(key, []byte("ssh-ed25519 AAAA"), 0o600))
	t.Setenv("KEY_FILE", key)
	netlist := filepath.Join(t.TempDir(), "fabric.txt")
	require.NoError(t, os.WriteFile(netlist, []byte("switchguid=0x1\nSwitch 1 \"a\"\n"), 0o600))
	return map[string]string{
		"login": "--email a@b.test", "second-factor set-up": "", "second-factor remove": "", "logout": "", "whoami": "", "balance": "", "market list": "", "market search": "--type x --duration 1h",
		"quote": "--type x --duration 1d", "top-up": "100.00 usd", "invoice list": "", "invoice show": "inv_1", "invoice pdf": "inv_1 --file " + filepath.Join(t.TempDir(), "inv.pdf"),
		"invoice export": "--month 2026-03 --file " + filepath.Join(t.TempDir(), "focus.csv"), "keys list": "",
		"keys add ssh": "laptop " + key, "keys add api": "ci --expires 30d", "keys remove": "sshkey_1",
		"lease create": "quote_1 --ssh-key sshkey_1 --wait", "lease list": "", "lease show": "lease_1", "lease watch": "closed", "lease extend": "lease_1 --by 2h",
		"lease end": "lease_1", "lease ssh": "", "lease power": "lease_1", "lease events": "lease_1", "lease metrics": "lease_1",
		"attest get": "lease_1", "attest now": "lease_1", "attest verify": "", "admin nodes": "", "admin doctor": "",
		"admin fabric list": "", "admin fabric topology": "fra1/ib0", "admin fabric import": "ib0 " + netlist + " --apply", "admin node review": "gpu-1 accept",
		"audit list": "--action api_key. --since 7d", "audit export": "--file " + filepath.Join(t.TempDir(), "a.jsonl"), "audit verify": netlist + ".none",
		"webhooks list": "", "webhooks add": "https://acme.test/ --event lease.*", "webhooks show": "hook_1", "webhooks enable": "hook_1", "webhooks disable": "hook_1",
		"webhooks remove": "hook_1", "webhooks rotate": "hook_1 --leaked", "webhooks test": "hook_1", "webhooks log": "hook_1 --state failed",
		"webhooks replay": "hook_1 --since 6h --failed", "webhooks listen": "",
		"admin node show": "gpu-1", "admin node move": "fra1/gpu-1 maintenance --reason fan",
		"admin fabric audit": "ib0", "admin fabric drift": "fra1/ib0", "admin fabric posture": "ib0 --override lab", "admin fabric reserve": "fabric_1 --pkeys 0x0010",
		"admin fabric managers": "ib0 --ports 0x0000000000000009",
		"admin fabric range":    "ib0 --low 0x0100 --high 0x01ff",
		"admin fabric dismiss":  "ib0 0x0000000000000007 --reason unplugged",
	}
}

func TestEveryCommandPrintsOneJSONDocumentWithoutNull(t *testing.T) { //nolint:paralleltest // the environment is the process's
	fake := newFakeAPI(t)
	lines := goodLines(t)
	for path := range leaves(newRoot()) { //nolint:paralleltest // as above
		line, ok := lines[path]
		require.True(t, ok, "%s has no good command line", path)
		if path == "lease ssh" || path == "attest verify" || path == "webhooks listen" || path == "audit verify" { // what a machine prints; needs a signature; has no end
			continue
		}
		t.Run(path, func(t *testing.T) { //nolint:paralleltest // as above
			if path == "logout" {
				_, _, err := run(t, fake.URL, path)
				require.ErrorContains(t, err, "has no session")
				return
			}
			args := append(strings.Fields(path), strings.Fields(line)...)
			out, words, err := run(t, fake.URL, append(args, "-o", "json")...)
			if path == "admin doctor" {
				require.Equal(t, ExitUnhealthy, ExitStatus(err))
			} else {
				require.NoError(t, err)
			}
			decoder := json.NewDecoder(strings.NewReader(out))
			var document any
			require.NoError(t, decoder.Decode(&document), out)
			_, err = decoder.Token()
			require.ErrorIs(t, err, io.EOF, "more than one document: %s", out)
			require.NotContains(t, out, "null", words)

			people, _, _ := run(t, fake.URL, args...)
			require.NotEmpty(t, people, "a person is told nothing")
			require.NotContains(t, people, "%!", "a broken format")
		})
	}
}

func TestEveryCommandRefusesNonsenseBeforeItAsksAnybody(t *testing.T) { //nolint:paralleltest // the environment is the process's
	fake := newFakeAPI(t)
	refused := func(args ...string) {
		out, _, err := run(t, fake.URL, args...)
		require.Equal(t, ExitUsage, ExitStatus(err), "%v: %v", args, err)
		require.Empty(t, out, args)
		require.Empty(t, fake.asked, args)
	}
	for path, leaf := range leaves(newRoot()) {
		words := strings.Fields(path)
		refused(append(words, "--no-such-flag")...)
		refused(append(words, "-o", "yaml")...)
		if path == "lease ssh" || path == "webhooks replay" || path == "audit verify" { // takes any number
			refused(words...)
			continue
		}
		refused(append(words, "one", "two", "three")...)
		if strings.Contains(leaf.Use, " ") {
			refused(words...)
		}
	}
	for _, group := range []string{"keys", "keys add", "lease", "market", "invoice", "attest", "admin"} {
		refused(append(strings.Fields(group), "frobnicate")...)
	}
	for _, line := range []string{
		"top-up -5 USD", "top-up 0 USD", "top-up x USD", "top-up 1.234 USD", "top-up 1 GLD", "quote --type x", "quote --type x --duration 2y",
		"quote --type x --duration -5h", "quote --type x --duration 1h --end 2026-01-01T00:00:00Z", "quote --type x --end 2026-01-01T00:00:00Z",
		"quote --type x --start tomorrow --duration 1h", "quote --type x --start 2026-01-02T00:00:00Z --end 2026-01-01T00:00:00Z",
		"lease extend lease_1", "lease extend lease_1 --by 1h --to 2026-01-01T00:00:00Z", "keys remove laptop", "admin node move gpu-1 asleep", "admin node review gpu-1 maybe", "admin fabric import ib0 - --digest sha256:0", "lease create q --wait --dry-run",
	} {
		refused(strings.Fields(line)...)
	}
}

func TestWhatIsRefusedSaysWhatToDo(t *testing.T) { //nolint:paralleltest // the environment is the process's
	for line, want := range map[string]string{
		"top-up -5 USD":        "an amount to pay in is above zero",
		"top-up -.5 USD":       "an amount to pay in is above zero",
		"lease shwo lease_1":   `lease has no command "shwo"; did you mean show?`,
		"lease show":           "leasehold lease show LEASE",
		"balance -o yaml":      "want table, wide or json",
		"quote --type x":       "[duration end] is required",
		"keys remove laptop":   "leasehold keys list",
		"keys list --nonsense": "leasehold keys list --help",
		"lease create quote_1": "leasehold keys add ssh",
		"login --email a@b.test --server 127.0.0.1:8080": "begins with http:// or https://",
		"lease ssh lease_1":       "leasehold lease show lease_1",
		"attest verify /dev/null": "is no signed envelope",
	} {
		fake := newFakeAPI(t)
		out, _, err := run(t, fake.URL, strings.Fields(line)...)
		require.ErrorContains(t, err, want, line)
		require.Empty(t, out, line)
	}
}

func TestIDsOfKeysNeedNoLookAtTheList(t *testing.T) { //nolint:paralleltest // the environment is the process's
	fake := newFakeAPI(t)
	_, _, err := run(t, fake.URL, "lease", "create", "quote_1", "--ssh-key", "sshkey_1,sshkey_2")
	require.NoError(t, err)
	require.Equal(t, []string{"POST /v1/leases"}, fake.asked)
}

func TestAPaymentThatFailedIsNoSuccess(t *testing.T) { //nolint:paralleltest // the environment is the process's
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id": "pay_1", "state": "failed", "failure": "Your card was declined.", "amount": {"amount": 500, "currency": "USD"}}`)
	}))
	t.Cleanup(server.Close)
	out, _, err := run(t, server.URL, "top-up", "5", "USD", "-o", "json")
	require.ErrorContains(t, err, "nothing was paid in: Your card was declined.")
	require.Equal(t, ExitFailure, ExitStatus(err))
	require.Contains(t, out, `"failed"`)
}
