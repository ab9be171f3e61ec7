package access_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/protocol"
)

// parrot is a shell that says what it was told.
type parrot struct{}

func (parrot) Prompt(lease string) string  { return lease + "$ " }
func (parrot) Welcome(lease string) string { return "welcome " + lease + "\n" }

func (parrot) Run(_ context.Context, lease, line string, out, errs io.Writer) (int, bool) {
	switch line {
	case "exit":
		return 3, true
	case "dance":
		_, _ = fmt.Fprintln(errs, "dance: command not found")
		return 127, false
	default:
		_, _ = fmt.Fprintf(out, "%s: %s\n", lease, line)
		return 0, false
	}
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// gate is a server under test.
type gate struct {
	*access.Server
	t     *testing.T
	clock *clock
	dir   string
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{t: t, clock: &clock{now: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)}, dir: t.TempDir()}
	g.open()
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func (g *gate) open() {
	g.t.Helper()
	server, err := access.NewServer(g.t.Context(), access.ServerConfig{
		Dir: g.dir, Listen: "127.0.0.1", Sessions: access.Lines(parrot{}), Now: g.clock.Now, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(g.t, err)
	g.Server = server
}

// person is somebody with a key.
type person struct {
	signer gossh.Signer
	line   string
}

func newPerson(t *testing.T) person {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := gossh.NewSignerFromKey(private)
	require.NoError(t, err)
	return person{signer: signer, line: strings.TrimSpace(string(gossh.MarshalAuthorizedKey(signer.PublicKey()))) + " me@home"}
}

func (g *gate) grant(lease string, people ...person) protocol.GrantEvidence {
	g.t.Helper()
	evidence, err := g.Grant(g.t.Context(), g.of(lease, people...))
	require.NoError(g.t, err)
	return evidence
}

func (g *gate) of(lease string, people ...person) access.Grant {
	keys := []string{}
	for _, p := range people {
		keys = append(keys, p.line)
	}
	return access.Grant{Place: lease, User: "lease", Keys: keys, NotAfter: g.clock.Now().Add(time.Hour)}
}

// dial logs in, checking the host key that the grant gave out.
func (g *gate) dial(at protocol.GrantEvidence, auth ...gossh.AuthMethod) (*gossh.Client, error) {
	g.t.Helper()
	host, _, _, _, err := gossh.ParseAuthorizedKey([]byte(at.HostKeys[0]))
	require.NoError(g.t, err)
	client, err := gossh.Dial("tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port)), &gossh.ClientConfig{
		User: at.User, Auth: auth, HostKeyCallback: gossh.FixedHostKey(host), Timeout: 10 * time.Second,
	})
	if err == nil {
		g.t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func (g *gate) enter(at protocol.GrantEvidence, p person) *gossh.Client {
	g.t.Helper()
	client, err := g.dial(at, gossh.PublicKeys(p.signer))
	require.NoError(g.t, err)
	return client
}

func (g *gate) refused(at protocol.GrantEvidence, p person) {
	g.t.Helper()
	_, err := g.dial(at, gossh.PublicKeys(p.signer))
	require.ErrorContains(g.t, err, "unable to authenticate")
}

func run(t *testing.T, client *gossh.Client, command string) (string, error) {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close() //nolint:errcheck // the test is over
	out, err := session.Output(command)
	return string(out), err
}

func TestTheHolderOfAGrantedKeyComesInAndAStrangerDoesNot(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me, stranger := newPerson(t), newPerson(t)
	at := g.grant("lease_1", me)
	require.Equal(t, "lease", at.User)
	out, err := run(t, g.enter(at, me), "hostname")
	require.NoError(t, err)
	require.Equal(t, "lease_1: hostname\n", out)

	g.refused(at, stranger)
	_, err = g.dial(at, gossh.Password("lease"))
	require.Error(t, err)
	wrongName := at
	wrongName.User = "root"
	g.refused(wrongName, me)
	require.True(t, g.Granted("lease_1"))
}

func TestExitStatusesComeThrough(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	_, err := run(t, g.enter(g.grant("lease_1", me), me), "dance")
	var status *gossh.ExitError
	require.ErrorAs(t, err, &status)
	require.Equal(t, 127, status.ExitStatus())
}

func TestAnInteractiveSessionHasAPromptAndEndsWithExit(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	session, err := g.enter(g.grant("lease_1", me), me).NewSession()
	require.NoError(t, err)
	require.NoError(t, session.RequestPty("xterm", 24, 80, gossh.TerminalModes{}))
	var out bytes.Buffer
	session.Stdout = &out
	session.Stdin = strings.NewReader("whoami\rexit\r")
	require.NoError(t, session.Shell())
	var status *gossh.ExitError
	require.ErrorAs(t, session.Wait(), &status)
	require.Equal(t, 3, status.ExitStatus())
	require.Contains(t, out.String(), "welcome lease_1")
	require.Contains(t, out.String(), "lease_1$ ")
	require.Contains(t, out.String(), "lease_1: whoami\r\n")
}

func TestLinesFromAPipeAreRunInOrder(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	session, err := g.enter(g.grant("lease_1", me), me).NewSession()
	require.NoError(t, err)
	var out bytes.Buffer
	session.Stdout = &out
	session.Stdin = strings.NewReader("one\ntwo\n")
	require.NoError(t, session.Shell())
	require.NoError(t, session.Wait())
	require.Equal(t, "lease_1: one\nlease_1: two\n", out.String())
}

func TestARevocationEndsSessionsAndLogInsAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me, neighbour := newPerson(t), newPerson(t)
	at, next := g.grant("lease_1", me), g.grant("lease_2", neighbour)
	mine, theirs := g.enter(at, me), g.enter(next, neighbour)
	session, err := mine.NewSession()
	require.NoError(t, err)
	stdin, err := session.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close() //nolint:errcheck // the test is over
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Shell())
	_, err = io.WriteString(stdin, "hostname\n") // the session has begun when the shell answers; a second session might still be closing
	require.NoError(t, err)
	for answer := bufio.NewReader(stdout); ; {
		line, err := answer.ReadString('\n')
		require.NoError(t, err)
		if strings.Contains(line, "lease_1") {
			break
		}
	}

	evidence, err := g.Revoke(t.Context(), "lease_1")
	require.NoError(t, err)
	require.True(t, evidence.LoginRefused)
	require.Equal(t, 1, evidence.SessionsEnded)
	require.Error(t, session.Wait())
	require.Error(t, mine.Wait())
	g.refused(at, me)
	require.False(t, g.Granted("lease_1"))

	again, err := g.Revoke(t.Context(), "lease_1")
	require.NoError(t, err)
	require.True(t, again.LoginRefused)
	require.Zero(t, again.SessionsEnded)

	out, err := run(t, theirs, "hostname")
	require.NoError(t, err, "another lease's session was ended")
	require.Equal(t, "lease_2: hostname\n", out)
}

func TestRevokingWhatWasNeverGrantedIsTriedAndRefused(t *testing.T) {
	t.Parallel()
	evidence, err := newGate(t).Revoke(t.Context(), "lease_9")
	require.NoError(t, err)
	require.True(t, evidence.LoginRefused)
}

func TestAccessEndsByItselfAtItsTime(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	grant := g.of("lease_1", me)
	grant.NotAfter = g.clock.Now().Add(200 * time.Millisecond)
	at, err := g.Grant(t.Context(), grant)
	require.NoError(t, err)
	client := g.enter(at, me)
	g.clock.advance(time.Second)
	g.refused(at, me)
	require.Error(t, client.Wait(), "the open connection stays open")
	require.False(t, g.Granted("lease_1"))
}

func TestAnExtensionKeepsSessionsAndARemovedKeyLosesThem(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me, you := newPerson(t), newPerson(t)
	at := g.grant("lease_1", me)
	client := g.enter(at, me)
	require.Equal(t, at, g.grant("lease_1", me, you))
	_, err := run(t, client, "hostname")
	require.NoError(t, err)

	require.Equal(t, at, g.grant("lease_1", you))
	require.Error(t, client.Wait())
	g.refused(at, me)
	g.enter(at, you)
}

func TestARestartKeepsAddressHostKeyAndGrants(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me, gone := newPerson(t), newPerson(t)
	at := g.grant("lease_1", me)
	other := g.grant("lease_2", gone)
	_, err := g.Revoke(t.Context(), "lease_2")
	require.NoError(t, err)
	require.NoError(t, g.Close())
	g.open()
	g.enter(at, me)
	g.refused(other, gone)
	require.Equal(t, at, g.grant("lease_1", me))
}

func TestOneKeyInTwoLeasesOfOneNodeLeadsToTheRightOne(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	first, second := g.grant("lease_0000000001", me), g.grant("lease_0000000002", me)
	require.Equal(t, "lease", first.User)
	require.Equal(t, "lease-2", second.User)
	out, err := run(t, g.enter(second, me), "hostname")
	require.NoError(t, err)
	require.Equal(t, "lease_0000000002: hostname\n", out)
	out, err = run(t, g.enter(first, me), "hostname")
	require.NoError(t, err)
	require.Equal(t, "lease_0000000001: hostname\n", out)
}

func TestThereIsNoForwardingAndNoFileTransfer(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	at := g.grant("lease_1", me)
	client := g.enter(at, me)
	_, err := client.Dial("tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port)))
	require.Error(t, err)
	_, err = client.Listen("tcp", "127.0.0.1:0")
	require.Error(t, err)
	session, err := client.NewSession()
	require.NoError(t, err)
	require.Error(t, session.RequestSubsystem("sftp"))
}

func TestGrantsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	me := newPerson(t)
	for name, spoil := range map[string]func(*access.Grant){
		"no place":      func(a *access.Grant) { a.Place = "" },
		"no user":       func(a *access.Grant) { a.User = "" },
		"garbage key":   func(a *access.Grant) { a.Keys = []string{"ssh-ed25519 nonsense"} },
		"empty key":     func(a *access.Grant) { a.Keys = []string{""} },
		"key options":   func(a *access.Grant) { a.Keys = []string{`command="sh" ` + me.line} },
		"two in one":    func(a *access.Grant) { a.Keys = []string{me.line + "\n" + me.line} },
		"too many keys": func(a *access.Grant) { a.Keys = make([]string, 1000) },
		"ended":         func(a *access.Grant) { a.NotAfter = g.clock.Now() },
	} {
		grant := g.of("lease_1", me)
		spoil(&grant)
		_, err := g.Grant(t.Context(), grant)
		require.ErrorIs(t, err, access.ErrInvalid, name)
	}
	require.False(t, g.Granted("lease_1"))
}
