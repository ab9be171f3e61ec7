package access

import (
	"errors"
	"io"
	"net"

	"github.com/gliderlabs/ssh"
	gossh "golang.org/x/crypto/ssh"
)

// forwardRequest is what a client asks for with a direct-tcpip channel (RFC 4254, 7.2).
type forwardRequest struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// forward connects tenants to ports of their own places. Every other address is refused: this host's network is not the tenants'.
func (s *Server) forward(_ *ssh.Server, _ *gossh.ServerConn, asked gossh.NewChannel, ctx ssh.Context) {
	place, _ := ctx.Value(placeKey).(string) //nolint:errcheck // without one, begin refuses
	machine, able := s.cfg.Sessions.(Machine)
	var want forwardRequest
	switch {
	case !able || gossh.Unmarshal(asked.ExtraData(), &want) != nil || !loopback(want.Host) || want.Port == 0 || want.Port > 65535:
		_ = asked.Reject(gossh.Prohibited, "only ports of your own place are forwarded: name localhost") //nolint:errcheck // the peer is gone
		return
	case !s.begin(place):
		_ = asked.Reject(gossh.Prohibited, "access has ended") //nolint:errcheck // the peer is gone
		return
	}
	defer s.finished(place)
	conn, err := machine.Dial(ctx, place, int(want.Port))
	if err != nil {
		_ = asked.Reject(gossh.ConnectionFailed, "nothing answers on that port") //nolint:errcheck // the peer is gone
		return
	}
	defer conn.Close() //nolint:errcheck // nothing hangs on it
	channel, requests, err := asked.Accept()
	if err != nil {
		return // the peer is gone
	}
	defer channel.Close() //nolint:errcheck // nothing hangs on it
	go gossh.DiscardRequests(requests)
	join(channel, conn)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// join copies both ways until both sides have said all.
func join(channel gossh.Channel, conn net.Conn) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(channel, conn) //nolint:errcheck // whatever ends it, it ends
		_ = channel.CloseWrite()      //nolint:errcheck // the peer may be gone
	}()
	_, err := io.Copy(conn, channel)
	half, able := conn.(interface{ CloseWrite() error })
	if err != nil || !able || errors.Is(half.CloseWrite(), net.ErrClosed) {
		_ = conn.Close() //nolint:errcheck // nothing hangs on it
	}
	<-answered
}
