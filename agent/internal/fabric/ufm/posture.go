package ufm

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Posture implements fabric.Driver, from app/smconf and the default partition. What UFM does not say is unknown. Keys never leave
// this function: details say what is the matter, not what the value is.
func (d *Driver) Posture(ctx context.Context) ([]protocol.PostureCheck, error) {
	found := d.judged(ctx)
	checks := make([]protocol.PostureCheck, 0, len(found))
	for _, item := range fabric.PostureItems() {
		check, judged := found[item]
		if !judged {
			check = unknown("UFM does not say")
		}
		check.Item = item
		checks = append(checks, check)
	}
	return checks, nil
}

func (d *Driver) judged(ctx context.Context) map[string]protocol.PostureCheck {
	seen, err := d.recent(ctx)
	if err != nil {
		return allUnknown(err)
	}
	conf, err := d.options(ctx)
	found := hardening(conf)
	if err != nil {
		found = allUnknown(err)
	}
	found[fabric.PostureDefaultLimited] = d.defaultMembership(seen)
	return found
}

func (d *Driver) options(ctx context.Context) (smconf, error) {
	data, err := d.client.get(ctx, pathSMConf)
	if err != nil {
		return nil, err
	}
	return decodeSMConf(data)
}

func allUnknown(err error) map[string]protocol.PostureCheck {
	found := map[string]protocol.PostureCheck{}
	for _, item := range fabric.PostureItems() {
		found[item] = unknown(fmt.Sprintf("UFM did not say: %v", err))
	}
	return found
}

func unknown(detail string) protocol.PostureCheck {
	return protocol.PostureCheck{Verdict: protocol.Unknown, Detail: detail}
}

func verdict(good bool, otherwise string) protocol.PostureCheck {
	if good {
		return protocol.PostureCheck{Verdict: protocol.True}
	}
	return protocol.PostureCheck{Verdict: protocol.False, Detail: otherwise}
}

// defaultMembership judges by the default partition's members. UFM says what the others are from 6.19 on.
func (d *Driver) defaultMembership(seen snapshot) protocol.PostureCheck {
	everybody := seen.partitions[protocol.DefaultLimited]
	for guid, m := range everybody.Members {
		if m.Membership == full && !d.isManager(guid) {
			return verdict(false, fmt.Sprintf("%v is a full member of the default partition", guid))
		}
	}
	switch everybody.Default {
	case limited:
		return verdict(true, "")
	case full:
		return verdict(false, "all ports are full members of the default partition")
	default:
		return unknown("UFM does not say what ports are in the default partition (it does from 6.19 on)")
	}
}

// hardening judges the subnet manager's options. Its and the administrator's keys are 1 by default, M_Key is 0.
func hardening(conf smconf) map[string]protocol.PostureCheck {
	return map[string]protocol.PostureCheck{
		fabric.PostureMKeySet:     mkey(conf),
		fabric.PostureMKeyPerPort: flag(conf, "m_key_per_port", "one M_Key for all ports"),
		fabric.PostureSMKeySet:    secret(conf, "sm_key"),
		fabric.PostureSAKeySet:    secret(conf, "sa_key"),
	}
}

// mkey judges whether strangers are kept from managing ports. At protection level 0 anybody can read a port's M_Key and then use
// it. Where the level is not told, keys of each port's own are taken for a sign that the fabric was hardened, as NVIDIA's own
// controller does; one key for all is not.
func mkey(conf smconf) protocol.PostureCheck {
	value, known := conf.number("m_key")
	protection, told := conf.number("m_key_protection_level")
	own, _ := conf.flag("m_key_per_port")
	switch {
	case !known:
		return unknown("UFM does not say m_key")
	case value == 0:
		return verdict(false, "m_key is 0")
	case told:
		return verdict(protection > 0, "m_key_protection_level is 0")
	case own:
		return protocol.PostureCheck{Verdict: protocol.True, Detail: "UFM does not say m_key_protection_level"}
	default:
		return unknown("m_key is set, and UFM does not say m_key_protection_level")
	}
}

func secret(conf smconf, name string) protocol.PostureCheck {
	value, known := conf.number(name)
	if !known {
		return unknown("UFM does not say " + name)
	}
	return verdict(value > 1, name+" is the default")
}

func flag(conf smconf, name, otherwise string) protocol.PostureCheck {
	on, known := conf.flag(name)
	if !known {
		return unknown("UFM does not say " + name)
	}
	return verdict(on, otherwise)
}
