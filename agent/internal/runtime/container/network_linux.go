package container

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guestLink is the name of a container's interface as the container sees it.
const guestLink = "eth0"

// hostLink is the name of the host's end of a place's wire. All of one driver's begin alike, which the packet filter relies on.
func (d *Driver) hostLink(p place) string { return d.id(p) }

// Validate says what is wrong with the pool: two addresses are needed for each of at most 256 slots.
func (e Egress) Validate() error {
	if !e.Pool.Addr().Is4() || e.Pool.Bits() > 32-9 {
		return fmt.Errorf("the pool of addresses %s is not a network of IPv4 of at least /23", e.Pool)
	}
	return nil
}

// addresses returns the two ends of a place's wire.
func (e Egress) addresses(p place) (host, guest netip.Prefix, err error) {
	if err := e.Validate(); err != nil {
		return host, guest, err
	}
	base := e.Pool.Masked().Addr()
	octets := base.As4()
	binary.BigEndian.PutUint32(octets[:], binary.BigEndian.Uint32(octets[:])+uint32(2*p.Slots.From)) //nolint:gosec // slots are few
	first := netip.AddrFrom4(octets)
	return netip.PrefixFrom(first, 31), netip.PrefixFrom(first.Next(), 31), nil
}

// connect lays a wire into a container's network, if tenants have a way out at all. Without one a container has its loopback interface only.
func (d *Driver) connect(ctx context.Context, p place, pid int) error {
	if d.cfg.Egress.Interface == "" {
		return nil
	}
	host, guest, err := d.cfg.Egress.addresses(p)
	if err != nil {
		return err
	}
	// The filter first: nothing is to pass before it.
	if err := d.filter(ctx); err != nil {
		return err
	}
	name := d.hostLink(p)
	wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: guestLink, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(wire); err != nil {
		return fmt.Errorf("lay wire %s: %w", name, err)
	}
	for key, value := range map[string]string{"ipv4/conf/" + name + "/forwarding": "1", "ipv4/conf/" + name + "/rp_filter": "1", "ipv6/conf/" + name + "/disable_ipv6": "1", "ipv4/conf/" + d.cfg.Egress.Interface + "/forwarding": "1"} {
		if err := sysctl(key, value); err != nil {
			return err
		}
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("lay wire: %w", err)
	}
	defer handle.Close()
	if err := configure(handle, name, host); err != nil {
		return err
	}
	return connectGuest(pid, host, guest)
}

// connectGuest configures the container's end.
func connectGuest(pid int, host, guest netip.Prefix) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("find the container's network: %w", err)
	}
	defer space.Close() //nolint:errcheck // nothing hangs on it
	return onOwnThread(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the container's network: %w", err)
		}
		if err := sysctl("ipv6/conf/all/disable_ipv6", "1"); err != nil {
			return err
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("lay wire: %w", err)
		}
		defer handle.Close()
		if err := configure(handle, guestLink, guest); err != nil {
			return err
		}
		if err := handle.RouteAdd(&netlink.Route{Gw: net.IP(host.Addr().AsSlice())}); err != nil {
			return fmt.Errorf("route the container's network: %w", err)
		}
		return nil
	})
}

func configure(handle *netlink.Handle, name string, address netip.Prefix) error {
	link, err := handle.LinkByName(name)
	if err == nil {
		err = handle.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32)}})
	}
	if err == nil {
		err = handle.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	return nil
}

// sysctl sets one of the kernel's network settings. A kernel without IPv6 has none of its.
func sysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	if strings.HasPrefix(key, "ipv6/") && !exists(path) {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil { //nolint:gosec // the file is the kernel's
		return fmt.Errorf("set %s: %w", key, err)
	}
	return nil
}

// disconnect takes a wire away that its container's end has not taken along.
func (d *Driver) disconnect(p place) error {
	link, err := netlink.LinkByName(d.hostLink(p))
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("take wire %s away: %w", d.hostLink(p), err)
	}
	return nil
}

func (d *Driver) linked(p place) (bool, error) {
	_, err := netlink.LinkByName(d.hostLink(p))
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return false, nil
	}
	return err == nil, err
}

// table is the name of the driver's own table of the packet filter. It touches no other.
func (d *Driver) table() string { return "leasehold_" + d.cfg.Name }

// filter installs what tenants may reach: the outside through one interface, and of it nothing that is closed; never each other, this host, or what
// only a neighbour on the host's own link should see. Nothing reaches them but answers. It is put in as a whole, so that there is no moment
// without it.
func (d *Driver) filter(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(d.rules())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install packet filter: nft: %w: %s", err, firstLine(string(out)))
	}
	return nil
}

func (d *Driver) rules() string {
	e := d.cfg.Egress
	closed := []string{e.Pool.Masked().String(), "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"}
	for _, network := range e.Closed {
		closed = append(closed, network.Masked().String())
	}
	var names strings.Builder
	for _, server := range e.Servers {
		if server.Is4() {
			fmt.Fprintf(&names, "\t\tiifname $tenants ip daddr %s meta l4proto { tcp, udp } th dport 53 accept\n", server)
		}
	}
	return fmt.Sprintf(`define tenants = "%s-*"
define out = "%s"
table inet %s
delete table inet %s
table inet %s {
	set closed { type ipv4_addr; flags interval; auto-merge; elements = { %s } }
	chain input {
		type filter hook input priority filter - 5; policy accept;
		iifname $tenants drop
	}
	chain forward {
		type filter hook forward priority filter - 5; policy accept;
		iifname $tenants oifname != $out drop
%s		iifname $tenants ip daddr @closed drop
		iifname $tenants meta nfproto ipv6 drop
		oifname $tenants ct state established,related accept
		oifname $tenants drop
	}
	chain hide {
		type nat hook postrouting priority srcnat; policy accept;
		oifname $out ip saddr %s masquerade
	}
}
`, d.cfg.Name, e.Interface, d.table(), d.table(), d.table(), strings.Join(closed, ", "), names.String(), e.Pool.Masked())
}

// containsPath reports whether a table of mounts has one at path or below it.
func containsPath(table, path string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == path || strings.HasPrefix(fields[4], path+"/")) {
			return true
		}
	}
	return false
}
