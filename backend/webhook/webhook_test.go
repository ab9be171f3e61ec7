package webhook

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/ids"
)

func TestOnlyPublicAddressesAreTargets(t *testing.T) {
	t.Parallel()
	for _, public := range []string{"8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:80f::200e", "192.0.1.1", "172.32.0.1", "100.128.0.1"} {
		require.Empty(t, Refusal(netip.MustParseAddr(public)), public)
	}
	for _, private := range []string{
		"127.0.0.1", "127.255.255.255", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
		"192.0.0.192", "168.63.129.16", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1",
		"fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "100::1", "5f00::1",
	} {
		require.NotEmpty(t, Refusal(netip.MustParseAddr(private)), private)
	}
}

func TestURLsThatNoDeliveryCanGoToAreRefused(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://hooks.example.com/leasehold", "https://hooks.example.com:8443/?a=b", "https://8.8.8.8/"} {
		require.Nil(t, checkURL(good, false), good)
	}
	for _, bad := range []string{
		"", "hooks.example.com", "http://hooks.example.com", "ftp://hooks.example.com", "https://", "https:///path", "https://me:secret@hooks.example.com",
		"https://hooks.example.com/#part", "https://hooks.example.com:25/", "https://hooks.example.com:0/", "https://127.0.0.1/", "https://[::1]/",
		"https://[::ffff:169.254.169.254]/", "https:hooks.example.com", "https://" + strings.Repeat("a", maxURL), "https://host name/", "file:///etc/passwd",
	} {
		require.NotNil(t, checkURL(bad, false), bad)
	}
	require.Nil(t, checkURL("http://127.0.0.1:3000/", true), "a lab's own receiver")
	require.NotNil(t, checkURL("file:///etc/passwd", true))
}

func FuzzURLs(f *testing.F) {
	f.Add("https://hooks.example.com:8443/")
	f.Fuzz(func(_ *testing.T, url string) { checkURL(url, false) })
}

func TestFiltersAreTypesAndFamilies(t *testing.T) {
	t.Parallel()
	require.True(t, wants(nil, "lease.active"))
	require.True(t, wants([]string{"node.*", "lease.active"}, "lease.active"))
	require.True(t, wants([]string{"lease.*"}, "lease.active"))
	require.False(t, wants([]string{"lease.*"}, "leasehold.active"))
	require.False(t, wants([]string{"lease.act"}, "lease.active"))
	require.Nil(t, checkTypes([]string{"lease.*", "platform.fabric.drift", "budget.exceeded"}))
	for _, bad := range []string{"", "*", "lease", "lease.", "wish.*", "lease.*.active", "lease.Active", "lease." + strings.Repeat("a", 61)} {
		require.NotNil(t, checkTypes([]string{bad}), bad)
	}
}

func TestTriesComeLaterEachTimeAndEndAfterThreeDays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		asked := time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(r, "asked"))
		var total time.Duration
		for tries := 1; ; tries++ {
			wait, more := pause(tries, asked)
			if !more {
				require.Equal(r, 10, tries)
				break
			}
			planned := schedule()[tries-1]
			require.GreaterOrEqual(r, wait, planned)
			require.LessOrEqual(r, wait, max(planned+planned/5, min(asked, maxRetryAfter)))
			total += planned
		}
		require.Greater(r, total, 3*24*time.Hour)
	})
}

func TestAPayloadIsTheSameBytesEachTimeAndHasOrderAndVersion(t *testing.T) {
	t.Parallel()
	e := Event{
		ID: parsed(t), Org: ids.Make[ids.Org](), Sequence: 7, Type: "lease.active", Subject: "lease_1", SubjectSequence: 3,
		At: time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("CET", 3600)), Data: json.RawMessage(`{"lease_id":"lease_1"}`),
	}
	body, err := json.Marshal(e.Payload())
	require.NoError(t, err)
	require.JSONEq(t, `{"id": "evt_01h455vb4pex5vsknk084sn02q", "type": "lease.active", "version": 1, "timestamp": "2026-03-01T12:00:00Z",
		"organization_id": "`+e.Org.String()+`", "sequence": 7, "subject": "lease_1", "subject_sequence": 3, "data": {"lease_id": "lease_1"}}`, string(body))
}

func parsed(t *testing.T) ids.Event {
	t.Helper()
	id, err := ids.Read[ids.Event]("evt_01h455vb4pex5vsknk084sn02q")
	require.NoError(t, err)
	return id
}

// A type that nobody is told about cannot be chosen.
func TestTheDocumentationKnowsEveryTypeOfALeasesLog(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/webhooks.md")
	require.NoError(t, err)
	source, err := os.ReadFile("../lease/event.go")
	require.NoError(t, err)
	declared := regexp.MustCompile(`EventType = "([a-z_.]+)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, declared)
	for _, d := range declared {
		require.Contains(t, string(docs), "`"+d[1]+"`")
		require.Nil(t, checkTypes([]string{d[1]}), d[1])
	}
	for _, own := range []string{Ping, EndpointDisabled, PaymentSucceeded, PaymentFailed} {
		require.Contains(t, string(docs), "`"+own+"`")
	}
}
