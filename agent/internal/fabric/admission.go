package fabric

import (
	"fmt"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Limits is what a driver knows of its fabric.
type Limits struct {
	// Known reports whether the port was ever seen. A port that is down now is known: a dead host must not keep other
	// tenants' changes from being made.
	Known func(protocol.GUID) bool
	// MaxPKeysPerPort bounds the entries of one port's table, the default key included.
	MaxPKeysPerPort int
	// ForeignKeys counts the partitions outside the managed range that the port is in; nil: none.
	ForeignKeys func(protocol.GUID) int
}

// Admit decides whether the set may follow the current state and returns it in its normal form. Every driver calls it before
// it touches anything, so that a wrong set never reaches a manager that would take it silently.
func Admit(current State, desired Desired, epoch int64, limits Limits) (Desired, error) {
	if epoch < current.Epoch {
		return Desired{}, refuse(CodeStaleEpoch, "epoch %d is older than %d, which was applied", epoch, current.Epoch)
	}
	desired = desired.Normal()
	if problems := faultsOf(desired, limits); len(problems) > 0 {
		return Desired{}, refuse(CodeInvalidPartitions, "%s", strings.Join(atMost(problems, 10), "; "))
	}
	if unknown := unknownPorts(desired, limits.Known); len(unknown) > 0 {
		return Desired{}, refuse(CodeUnknownPort, "never seen on this fabric: %s", strings.Join(atMost(unknown, 10), ", "))
	}
	if !desired.AllowShrink {
		if err := checkShrink(current.Desired, desired); err != nil {
			return Desired{}, err
		}
	}
	return desired, nil
}

func atMost(list []string, most int) []string {
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("and %d more", len(list)-most))
}

// maxReserved keeps the line short that has them in OpenSM's file.
const maxReserved = 256

// faultsOf lists the rules that the set breaks.
func faultsOf(d Desired, limits Limits) []string {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if d.Managed.Low < protocol.FirstPartitionID || d.Managed.High > protocol.LastPartitionID || d.Managed.Low > d.Managed.High {
		add("managed range %v…%v is not within %v…%v", d.Managed.Low, d.Managed.High, protocol.FirstPartitionID, protocol.LastPartitionID)
	}
	if len(d.Managed.Reserved) > maxReserved {
		add("%d reserved keys, at most %d", len(d.Managed.Reserved), maxReserved)
	}
	for _, key := range d.Managed.Reserved {
		if key < protocol.FirstPartitionID || key > protocol.LastPartitionID {
			add("reserved key %v is not one", key)
		}
	}
	byKey, byName, byPort := map[protocol.PKey]string{}, map[string]bool{}, map[protocol.GUID]string{}
	for _, p := range d.Partitions {
		if fault := nameFault(p.Name); fault != "" {
			add("partition %v: name %q %s", p.PKey, p.Name, fault)
		}
		if byName[p.Name] {
			add("name %q is used twice", p.Name)
		}
		if p.PKey.Full() || !d.Managed.Contains(p.PKey) {
			add("partition %q: key %v is not within %v…%v", p.Name, p.PKey, d.Managed.Low, d.Managed.High)
		}
		if other, taken := byKey[p.PKey]; taken {
			add("key %v is used by %q and %q", p.PKey, other, p.Name)
		}
		byKey[p.PKey], byName[p.Name] = p.Name, true
		for _, port := range p.Members {
			if other, taken := byPort[port]; taken {
				add("port %v is in %q and %q", port, other, p.Name)
			}
			byPort[port] = p.Name
		}
	}
	return append(faults, fullTables(byPort, limits)...)
}

// fullTables lists the ports whose tables would hold more than is safe: the default key, one lease's, and foreign ones.
func fullTables(members map[protocol.GUID]string, limits Limits) []string {
	var faults []string
	for port := range members {
		entries := 2
		if limits.ForeignKeys != nil {
			entries += limits.ForeignKeys(port)
		}
		if entries > limits.MaxPKeysPerPort {
			faults = append(faults, fmt.Sprintf("port %v would hold %d keys, at most %d", port, entries, limits.MaxPKeysPerPort))
		}
	}
	return faults
}

func unknownPorts(d Desired, known func(protocol.GUID) bool) []string {
	var unknown []string
	for _, p := range d.Partitions {
		for _, port := range p.Members {
			if !known(port) {
				unknown = append(unknown, fmt.Sprintf("%v in %q", port, p.Name))
			}
		}
	}
	return unknown
}

// maxNameLength keeps a partition's header short.
const maxNameLength = 63

const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// nameFault says what is wrong with a partition's name. OpenSM compares words with its keywords by prefix ("a" would be ALL),
// so a name that begins any of them is refused, although a name's place in the file is not a keyword's.
func nameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxNameLength:
		return fmt.Sprintf("has more than %d characters", maxNameLength)
	case strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(nameLetters, r) }):
		return "has characters other than a-z, 0-9 and -"
	case name[0] < 'a' || name[0] > 'z':
		return "does not begin with a letter"
	}
	for _, keyword := range []string{
		"all", "all_cas", "all_switches", "all_routers", "all_vcas", "self", "none", "default", "mgid", "indx0", "ipoib", "defmember",
		"full", "limited", "both", "mtu", "rate", "scope", "sl", "q_key", "tclass", "flowlabel",
	} {
		if strings.HasPrefix(keyword, name) {
			return "is a keyword of OpenSM, or begins one"
		}
	}
	return ""
}

// checkShrink refuses a set that drops more than half of the members at once: an empty set by accident would let every tenant
// go, and one that was cut short most of them. One lease can always end: the largest partition that goes as a whole is left
// out of the count, on both sides. So the last lease may leave, and one of two; both at once need AllowShrink, which the
// control plane sets when it knows why.
func checkShrink(before, after Desired) error {
	stays := after.KeyOf()
	remaining := map[protocol.PKey]bool{}
	for _, p := range after.Partitions {
		remaining[p.PKey] = true
	}
	var members, dropped, exempt int
	var gone []string
	for _, p := range before.Partitions {
		members += len(p.Members)
		if !remaining[p.PKey] {
			gone = append(gone, p.Name)
			exempt = max(exempt, len(p.Members))
		}
		for _, port := range p.Members {
			if _, still := stays[port]; !still {
				dropped++
			}
		}
	}
	// A partition that goes may hand ports to another; then fewer ports are dropped than it had.
	exempt = min(exempt, dropped)
	if 2*(dropped-exempt) <= members-exempt {
		return nil
	}
	return refuse(CodeShrinkRefused, "%d of %d members would be dropped at once, and %d partitions (%s)",
		dropped, members, len(gone), strings.Join(atMost(gone, 5), ", "))
}
