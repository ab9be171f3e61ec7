package webhook

import (
	"net/netip"
	"net/url"
	"strconv"

	"github.com/leasehold/leasehold/backend/fault"
)

const maxURL = 2048

// checkURL refuses addresses that no delivery can go to. The name is not resolved here: what it means is looked at each time that a
// connection is made, since it may mean something else then. lab allows plain HTTP and private addresses.
func checkURL(raw string, lab bool) *fault.Fault {
	refuse := func(why string) *fault.Fault { return errInvalid().At("/url", why) }
	target, err := url.Parse(raw)
	switch {
	case err != nil || target.Host == "" || target.Hostname() == "" || target.Opaque != "":
		return refuse("is not an absolute URL")
	case len(raw) > maxURL:
		return refuse("is too long")
	case target.Scheme != "https" && (target.Scheme != "http" || !lab):
		return refuse("is not https")
	case target.User != nil:
		return refuse("has a name or password; the signature proves who sends")
	case target.Fragment != "":
		return refuse("has a fragment")
	case !usablePort(target.Port(), lab):
		return refuse("has a port other than 443 and those from 1024")
	}
	if address, err := netip.ParseAddr(target.Hostname()); err == nil && !lab {
		if why := Refusal(address); why != "" {
			return refuse("is " + why)
		}
	}
	return nil
}

// usablePort keeps deliveries from mail servers and the like, which take an HTTP request for commands.
func usablePort(text string, lab bool) bool {
	if text == "" || lab {
		return true
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && (port == 443 || port >= 1024)
}

// Refusal says why no delivery goes to an address, "" for one that it may go to: a host on the public Internet. A mapped IPv4 address
// counts as that. Sources: the IANA registries of special-purpose addresses, RFC 6890 and its successors; 168.63.129.16 is where Azure
// has its hosts' services.
func Refusal(address netip.Addr) string {
	if address.Zone() != "" {
		return "an address of one link only"
	}
	address = address.Unmap()
	if address.Is6() && !inside(address, "2000::/3") {
		return "not a public address" // loopback, link-local, unique local, multicast, NAT64 (64:ff9b::/96), discard
	}
	if inside(address, refused()...) {
		return "not a public address"
	}
	return ""
}

// refused are the networks that are no public hosts, or lead to ones that are not.
func refused() []string {
	return []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/3", "168.63.129.16/32",
		"2001::/23",     // protocol assignments: Teredo (an IPv4 address within), benchmarking, ORCHID
		"2001:db8::/32", // documentation
		"2002::/16",     // 6to4: an IPv4 address within
		"2620:4f:8000::/48", "3fff::/20",
	}
}

func inside(address netip.Addr, networks ...string) bool {
	for _, network := range networks {
		if netip.MustParsePrefix(network).Contains(address) {
			return true
		}
	}
	return false
}
