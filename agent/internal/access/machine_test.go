package access_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/access"
)

// cabin is a whole machine behind the log-in: it says what it was asked, and on port 8888 it says so over and over.
type cabin struct{}

func (cabin) Serve(_ context.Context, place string, s access.Session) int {
	if s.Terminal != nil {
		for size := range s.Terminal.Resizes {
			if size.Columns == 132 {
				fmt.Fprintf(s.Out, "%s %d×%d", s.Terminal.Name, size.Columns, size.Rows)
				break
			}
		}
		return 0
	}
	sent, err := io.ReadAll(s.In)
	if err != nil {
		return 1
	}
	fmt.Fprintf(s.Out, "%s command=%q sftp=%v in=%q", place, s.Command, s.SFTP, sent)
	return 0
}

func (cabin) Dial(_ context.Context, place string, port int) (net.Conn, error) {
	if port != 8888 {
		return nil, net.ErrClosed
	}
	here, there := net.Pipe()
	go func() {
		_, _ = io.WriteString(there, "port of "+place)
		_ = there.Close()
	}()
	return here, nil
}

func newCabin(t *testing.T) *gate {
	t.Helper()
	g := &gate{t: t, clock: &clock{now: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)}, dir: t.TempDir()}
	server, err := access.NewServer(t.Context(), access.ServerConfig{
		Dir: g.dir, Listen: "127.0.0.1", Sessions: cabin{}, Now: g.clock.Now, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	g.Server = server
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func TestAMachineIsAskedForCommandsFilesAndTerminals(t *testing.T) {
	t.Parallel()
	g := newCabin(t)
	me := newPerson(t)
	client := g.enter(g.grant("lease_1", me), me)

	session, err := client.NewSession()
	require.NoError(t, err)
	stdin, err := session.StdinPipe()
	require.NoError(t, err)
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.RequestSubsystem("sftp"))
	_, err = io.WriteString(stdin, "packet")
	require.NoError(t, err)
	require.NoError(t, stdin.Close())
	said, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Equal(t, `lease_1 command="" sftp=true in="packet"`, string(said))

	session, err = client.NewSession()
	require.NoError(t, err)
	require.NoError(t, session.RequestPty("xterm", 24, 80, gossh.TerminalModes{}))
	stdout, err = session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Shell())
	require.NoError(t, session.WindowChange(50, 132))
	said, err = io.ReadAll(stdout)
	require.NoError(t, err)
	require.Equal(t, "xterm 132×50", string(said))
}

func TestOnlyPortsOfTheTenantsOwnPlaceAreForwarded(t *testing.T) {
	t.Parallel()
	g := newCabin(t)
	me := newPerson(t)
	at := g.grant("lease_1", me)
	client := g.enter(at, me)
	for _, address := range []string{"localhost:8888", "127.0.0.1:8888", "[::1]:8888"} {
		conn, err := client.Dial("tcp", address)
		require.NoError(t, err)
		said, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "port of lease_1", string(said))
	}
	for _, address := range []string{"10.0.0.1:8888", "169.254.169.254:80", "example.com:80", "localhost:0"} {
		_, err := client.Dial("tcp", address)
		require.ErrorContains(t, err, "your own place", address)
	}
	_, err := client.Dial("tcp", "localhost:9")
	require.ErrorContains(t, err, "nothing answers")
	_, err = client.Listen("tcp", "localhost:0")
	require.Error(t, err, "nothing is listened on for tenants")

	_, err = g.Revoke(t.Context(), "lease_1")
	require.NoError(t, err)
	require.Error(t, client.Wait())
}
