package redfish

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/power"
)

// collection is Redfish's list of links; long ones come in parts.
//
//nolint:tagliatelle // Redfish's names.
type collection struct {
	Members []link `json:"Members"`
	Next    string `json:"Members@odata.nextLink"`
}

// members lists a collection's paths, at most limit.
func (c *Client) members(ctx context.Context, path string, limit int) ([]string, error) {
	var paths []string
	for path != "" && len(paths) < limit {
		var part collection
		if err := c.get(ctx, path, &part); err != nil {
			return nil, err
		}
		for _, m := range part.Members {
			if local := c.local(m.ID); local != "" {
				paths = append(paths, local)
			}
		}
		if len(part.Members) == 0 {
			break // a list that goes on without an end and without members
		}
		path = part.Next
	}
	return paths[:min(len(paths), limit)], nil
}

// System implements power.Controller.
func (c *Client) System(ctx context.Context) (power.System, error) {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return power.System{}, err
	}
	found := power.System{
		Manufacturer: s.Manufacturer, Model: s.Model, Serial: s.SerialNumber, UUID: strings.ToLower(s.UUID), BIOSVersion: s.BiosVersion,
		State: stateOf(s.PowerState), MACs: []string{},
	}
	if s.EthernetInterfaces.ID == "" {
		return found, nil
	}
	paths, err := c.members(ctx, s.EthernetInterfaces.ID, maxMembers)
	if err != nil {
		return found, unlessUnsupported(err)
	}
	for _, path := range paths {
		var nic struct {
			MAC       string `json:"MACAddress"`          //nolint:tagliatelle // Redfish's
			Permanent string `json:"PermanentMACAddress"` //nolint:tagliatelle // Redfish's
		}
		if err := c.get(ctx, path, &nic); err != nil {
			return found, err
		}
		for _, mac := range []string{nic.Permanent, nic.MAC} {
			if mac = strings.ToLower(mac); mac != "" && !slices.Contains(found.MACs, mac) {
				found.MACs = append(found.MACs, mac)
			}
		}
	}
	return found, nil
}

// part is what chassis and firmware have in common.
//
//nolint:tagliatelle // Redfish's names.
type part struct {
	ID           string `json:"Id"`
	Name         string `json:"Name"`
	Manufacturer string `json:"Manufacturer"`
	Model        string `json:"Model"`
	SerialNumber string `json:"SerialNumber"`
	Version      string `json:"Version"`
}

func (c *Client) parts(ctx context.Context, path string) ([]power.Part, error) {
	paths, err := c.members(ctx, path, maxMembers)
	if err != nil {
		return nil, err
	}
	found := make([]power.Part, len(paths))
	for i, path := range paths {
		var p part
		if err := c.get(ctx, path, &p); err != nil {
			return nil, err
		}
		found[i] = power.Part{ID: p.ID, Name: p.Name, Manufacturer: p.Manufacturer, Model: p.Model, Serial: p.SerialNumber, Version: p.Version}
	}
	return found, nil
}

// Chassis implements power.Controller.
func (c *Client) Chassis(ctx context.Context) ([]power.Part, error) {
	return c.parts(ctx, root+"Chassis")
}

// Firmware implements power.Controller.
func (c *Client) Firmware(ctx context.Context) ([]power.Part, error) {
	return c.parts(ctx, root+"UpdateService/FirmwareInventory")
}

// serialConsole is Redfish's, of a ComputerSystem (2020.1 and newer) or of a Manager.
//
//nolint:tagliatelle // Redfish's names.
type serialConsole struct {
	MaxSessions int `json:"MaxConcurrentSessions"`
	SSH         struct {
		Enabled bool `json:"ServiceEnabled"`
		Port    int  `json:"Port"`
	} `json:"SSH"`
	IPMI struct {
		Enabled bool `json:"ServiceEnabled"`
	} `json:"IPMI"`
	Enabled *bool    `json:"ServiceEnabled"`
	Types   []string `json:"ConnectTypesSupported"`
}

func (s serialConsole) console() power.Console {
	found := power.Console{Kinds: slices.Clone(s.Types), Sessions: s.MaxSessions, SSHPort: s.SSH.Port, Enabled: s.SSH.Enabled || s.IPMI.Enabled}
	if s.SSH.Enabled && !slices.Contains(found.Kinds, "SSH") {
		found.Kinds = append(found.Kinds, "SSH")
	}
	if s.IPMI.Enabled && !slices.Contains(found.Kinds, "IPMI") {
		found.Kinds = append(found.Kinds, "IPMI")
	}
	if s.Enabled != nil {
		found.Enabled = *s.Enabled
	}
	return found
}

// Console implements power.Controller.
func (c *Client) Console(ctx context.Context) (power.Console, error) {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return power.Console{}, err
	}
	if s.SerialConsole != nil {
		return s.SerialConsole.console(), nil
	}
	managers, err := c.members(ctx, root+"Managers", maxMembers)
	if err != nil {
		return power.Console{}, err
	}
	for _, path := range managers {
		var m struct {
			SerialConsole *serialConsole `json:"SerialConsole"` //nolint:tagliatelle // Redfish's
		}
		if err := c.get(ctx, path, &m); err != nil {
			return power.Console{}, err
		}
		if m.SerialConsole != nil {
			return m.SerialConsole.console(), nil
		}
	}
	return power.Console{}, fault.New(fault.Invalid, codeUnsupported, "the BMC says nothing of a serial console")
}

// logEntry is Redfish's LogEntry.
//
//nolint:tagliatelle // Redfish's names.
type logEntry struct {
	ID       string `json:"Id"`
	Created  string `json:"Created"`
	Severity string `json:"Severity"`
	Message  string `json:"Message"`
}

// Events implements power.Controller.
func (c *Client) Events(ctx context.Context, limit int) ([]power.Event, error) {
	path, err := c.eventLog(ctx)
	if err != nil {
		return nil, err
	}
	var events []power.Event
	for pages := 0; path != "" && pages < maxMembers; pages++ {
		var page struct {
			Members []logEntry `json:"Members"`                //nolint:tagliatelle // Redfish's
			Next    string     `json:"Members@odata.nextLink"` //nolint:tagliatelle // Redfish's
		}
		if err := c.get(ctx, path, &page); err != nil {
			return nil, err
		}
		for _, e := range page.Members {
			events = append(events, power.Event{ID: e.ID, At: instant(e.Created), Severity: e.Severity, Message: e.Message})
		}
		path = page.Next
	}
	slices.SortStableFunc(events, func(a, b power.Event) int { return b.At.Compare(a.At) })
	return events[:min(len(events), limit)], nil
}

// eventLog finds the entries of the log that is the system event log: named so, or the machine's first.
func (c *Client) eventLog(ctx context.Context) (string, error) {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return "", err
	}
	holders := []string{}
	if s.LogServices.ID != "" {
		holders = append(holders, s.LogServices.ID)
	}
	managers, err := c.members(ctx, root+"Managers", maxMembers)
	if unlessUnsupported(err) != nil {
		return "", err
	}
	for _, m := range managers {
		holders = append(holders, strings.TrimSuffix(m, "/")+"/LogServices")
	}
	first := ""
	for _, holder := range holders {
		logs, err := c.members(ctx, holder, maxMembers)
		if unlessUnsupported(err) != nil {
			return "", err
		}
		for _, l := range logs {
			entries := strings.TrimSuffix(l, "/") + "/Entries"
			if name := l[strings.LastIndex(strings.TrimSuffix(l, "/"), "/")+1:]; strings.EqualFold(strings.TrimSuffix(name, "/"), "SEL") {
				return entries, nil
			}
			if first == "" {
				first = entries
			}
		}
	}
	if first == "" {
		return "", fault.New(fault.Invalid, codeUnsupported, "the BMC keeps no event log")
	}
	return first, nil
}

// instant reads a time as BMCs write it; the zero time for what is none.
func instant(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}
