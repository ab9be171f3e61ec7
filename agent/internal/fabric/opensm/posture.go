package opensm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Posture implements fabric.Driver from the files that OpenSM was started with. An option that the file does not name has
// OpenSM's default. A standby that could not be given the file is tried again.
func (d *Driver) Posture(ctx context.Context) ([]protocol.PostureCheck, error) {
	d.giveStandbys(ctx)
	verdicts := map[string]protocol.PostureCheck{
		fabric.PostureDefaultLimited: d.defaultMembership(), fabric.PostureStandbyInStep: d.standbysInStep(),
	}
	options, err := readOptions(d.config.OptionsFile)
	for item, check := range hardening(options) {
		if err != nil {
			check = protocol.PostureCheck{Verdict: protocol.Unknown, Detail: err.Error()}
		}
		verdicts[item] = check
	}
	checks := make([]protocol.PostureCheck, 0, len(verdicts))
	for _, item := range fabric.PostureItems() {
		check := verdicts[item]
		check.Item = item
		checks = append(checks, check)
	}
	return checks, nil
}

// defaultMembership judges by the file in place: OpenSM makes everybody a full member on one that it cannot read, and members of a tenant's
// partition of whomever somebody wrote into it. What stands outside our range is an administrator's own.
func (d *Driver) defaultMembership() protocol.PostureCheck {
	d.mu.Lock() // a set that is being put in place is in memory first, and then in the file
	defer d.mu.Unlock()
	f, err := readFile(d.config.PartitionsFile)
	ours, known := d.memory.file()
	var malformed *parseError
	switch {
	case err == nil && known && edited(ours, f):
		return protocol.PostureCheck{Verdict: protocol.False, Detail: "the partition file was changed by hand: it is put back with the next set"}
	case err == nil:
		return protocol.PostureCheck{Verdict: protocol.True}
	case known && errors.As(err, &malformed):
		return protocol.PostureCheck{Verdict: protocol.False, Detail: "the partition file was replaced by one that OpenSM may open the fabric on: " + err.Error()}
	case errors.Is(err, errNoFile):
		return protocol.PostureCheck{Verdict: protocol.False, Detail: "there is no partition file: everybody is a full member"}
	default:
		return protocol.PostureCheck{Verdict: protocol.Unknown, Detail: err.Error()}
	}
}

// edited reports whether the file in place has other partitions in our range than the one that we left there. After a crash between the
// two writes the file has an older epoch, which the next set mends.
func edited(ours, now file) bool {
	switch {
	case ours.Header == nil:
		return false
	case now.Header == nil:
		return true
	case now.Header.Epoch != ours.Header.Epoch:
		return false
	}
	managed := ours.Header.Managed
	return !reflect.DeepEqual(managed, now.Header.Managed) || !reflect.DeepEqual(ours.within(managed), now.within(managed))
}

// options are OpenSM's, by name.
type options map[string]string

func readOptions(path string) (options, error) {
	if path == "" {
		return nil, fmt.Errorf("OpenSM's options file is not configured")
	}
	text, err := os.ReadFile(path) //nolint:gosec // the configured path
	if err != nil {
		return nil, fmt.Errorf("read OpenSM's options: %w", err)
	}
	found := options{}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) >= 2 {
			found[words[0]] = words[1]
		}
	}
	return found, nil
}

func (o options) number(name string) uint64 {
	n, err := strconv.ParseUint(o[name], 0, 64)
	if err != nil {
		return 0
	}
	return n
}

// hardening judges the options. The subnet manager's and administrator's keys are 1 by default.
func hardening(o options) map[string]protocol.PostureCheck {
	return map[string]protocol.PostureCheck{
		fabric.PostureMKeySet: verdict(o.number("m_key") != 0 && o.number("m_key_protection_level") > 0,
			"m_key is 0, or m_key_protection_level is"),
		fabric.PostureMKeyPerPort: verdict(strings.EqualFold(o["m_key_per_port"], "TRUE"),
			"one M_Key for all ports (upstream OpenSM has no other way)"),
		fabric.PostureSMKeySet: verdict(o.number("sm_key") > 1, "sm_key is the default"),
		fabric.PostureSAKeySet: verdict(o.number("sa_key") > 1, "sa_key is the default"),
		fabric.PostureSwitchEnforcement: verdict((o["part_enforce"] == "" || o["part_enforce"] == "both") &&
			!strings.EqualFold(o["no_partition_enforcement"], "TRUE"), "part_enforce is not both"),
		fabric.PostureGuestsDeniedSM: {
			Verdict: protocol.Unknown, Detail: "upstream OpenSM has no list of ports that may run a subnet manager",
		},
	}
}

func verdict(good bool, otherwise string) protocol.PostureCheck {
	if good {
		return protocol.PostureCheck{Verdict: protocol.True}
	}
	return protocol.PostureCheck{Verdict: protocol.False, Detail: otherwise}
}
