//go:build linux

package container_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/runtime/container"
)

// outside is a network beyond the host: a wire to a network namespace of its own, in which something answers on a port.
type outside struct {
	t     *testing.T
	space string
	link  string // the host's end
	net   netip.Prefix
}

func (o *outside) sh(command string, args ...any) string {
	o.t.Helper()
	out, err := exec.CommandContext(o.t.Context(), "sh", "-c", fmt.Sprintf(command, args...)).CombinedOutput() //nolint:gosec // the test's own words
	require.NoError(o.t, err, "%s: %s", fmt.Sprintf(command, args...), out)
	return string(out)
}

// newOutside makes the network 10.x.y.0/24: .1 is the host, .2 somebody outside, .3 somebody that tenants may not reach.
func newOutside(t *testing.T, name string, third int) *outside {
	t.Helper()
	o := &outside{t: t, space: name + "-out", link: name + "o", net: netip.MustParsePrefix(fmt.Sprintf("10.213.%d.0/24", third))}
	base := strings.TrimSuffix(o.net.Addr().String(), "0")
	o.sh("ip netns add %s && ip link add %s type veth peer name far netns %s", o.space, o.link, o.space)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", o.link).Run()
		_ = exec.Command("ip", "netns", "del", o.space).Run()
		_ = exec.Command("nft", "delete", "table", "inet", "leasehold_"+name).Run()
	})
	o.sh("ip addr add %s1/24 dev %s && ip link set %s up", base, o.link, o.link)
	o.sh("ip -n %s addr add %s2/24 dev far && ip -n %s addr add %s3/24 dev far && ip -n %s link set far up && ip -n %s link set lo up", o.space, base, o.space, base, o.space, o.space)
	server := exec.CommandContext(t.Context(), "ip", "netns", "exec", o.space, "busybox", "nc", "-ll", "-p", "80", "-e", "/bin/sh", "-c", "echo you are welcome") //nolint:gosec // the test's own words
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return o
}

// listen answers on an address of the host, which it returns as nc wants it.
func listen(t *testing.T, address string) string {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("the host"))
			_ = conn.Close()
		}
	}()
	return strings.ReplaceAll(listener.Addr().String(), ":", " ")
}

func TestTenantsReachTheOutsideAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s", program)
		}
	}
	h := newHouse(t)
	third := int(h.driver.Users(0)>>20) & 0xff // this test's own
	o := newOutside(t, h.cfg.Name, third)
	base := strings.TrimSuffix(o.net.Addr().String(), "0")
	closed := netip.MustParsePrefix(base + "3/32")
	h.cfg.Egress = container.Egress{
		Interface: o.link, Pool: netip.MustParsePrefix(fmt.Sprintf("10.214.%d.0/23", third*2%256)), Closed: []netip.Prefix{closed},
		Servers: []netip.Addr{netip.MustParseAddr(base + "2")},
	}
	h.close()
	h.open()
	a, b := h.moveIn(gpuA(), specOf("lease_a", cardA)), h.moveIn(gpuB(), specOf("lease_b", cardB))
	require.Equal(t, "nameserver "+base+"2", b.run("cat /etc/resolv.conf"))

	require.Eventually(t, func() bool {
		said, err := a.try("nc -w 2 " + base + "2 80 </dev/null")
		return err == nil && said == "you are welcome"
	}, 10*time.Second, 50*time.Millisecond, "the outside is not reached")

	address := func(m *tenant) string {
		return m.run("ip -o -4 addr show eth0 | sed 's/.* inet \\([0-9.]*\\).*/\\1/'")
	}
	b.begin("while :; do echo of b | nc -l -p 7777; done")
	require.Equal(t, "of b", b.run("while ! nc -w 1 127.0.0.1 7777; do :; done"))
	host := a.run("ip route | sed -n 's/default via \\([0-9.]*\\) .*/\\1/p'")
	require.NotEmpty(t, host)
	for what, target := range map[string]string{
		"a neighbour": address(b) + " 7777", "what is closed": base + "3 80", "the host at its end of the wire": listen(t, host),
		"the host at the outside's end": listen(t, base+"1"), "the cloud's metadata": "169.254.169.254 80",
	} {
		said, err := a.try("nc -w 1 " + target + " </dev/null")
		require.Error(t, err, "%s (%s): %s", what, target, said)
	}
	require.Empty(t, a.run("ip -6 addr show eth0"))
	_, err := a.try("ip addr add 10.99.0.1/32 dev eth0")
	require.Error(t, err, "a tenant chose an address of its own")
	// From outside nobody comes in.
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", o.space, "sh", "-c", //nolint:gosec // the test's own words
		fmt.Sprintf("ip route add %s via %s1 && busybox nc -w 1 %s 7777", h.cfg.Egress.Pool, base, address(b))).CombinedOutput()
	require.Error(t, err, string(out))

	a.moveOut()
	require.NotContains(t, o.sh("ip link"), h.cfg.Name+"-000")
	require.Contains(t, o.sh("ip link"), h.cfg.Name+"-008")
	require.Equal(t, "you are welcome", b.run("nc -w 2 "+base+"2 80 </dev/null"), "the neighbour's way out went too")
}
