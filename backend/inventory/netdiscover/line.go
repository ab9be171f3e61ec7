package netdiscover

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// maxPorts is how many ports a device can have: the port number of subnet management is a byte, and 0 and 255 are taken.
const maxPorts = 254

// grammar has the forms of lines. What follows a '#' is a remark, which ibnetdiscover gives a form of its own.
type grammar struct {
	attribute *regexp.Regexp // name, value, GUID of port 0, remark
	head      *regexp.Regexp // kind, ports, name, rest
	port      *regexp.Regexp // number, own GUID, peer, peer's port, peer's GUID, options, remark
	heading   *regexp.Regexp // of a group of blocks (ibnetdiscover -g)

	headRemark       *regexp.Regexp // description, lid of a switch
	switchPortRemark *regexp.Regexp // peer's lid, link
	hcaPortRemark    *regexp.Regexp // own lid, peer's lid, link
	link             *regexp.Regexp // width, speed
	managed          *regexp.Regexp // a managed switch's description: name, place in its chassis
}

func newGrammar() grammar {
	// With -f, the raw values of speed, width and lanes follow; some vendors' gateways add their slot.
	const full = `((?: [swve]=\d+)*)(?: slot \d+| \(scp\))?$`
	return grammar{
		attribute: regexp.MustCompile(`^([a-z]+)=(\S*?)(?:\(([^()\s]*)\))?\s*(?:#.*)?$`),
		head:      regexp.MustCompile(`^(Switch|Ca|Hca|Rt)\s+(\S+)\s+"([^"]*)"\s*(.*)$`),
		port: regexp.MustCompile(`^\[([^\[\]]*)\](?:\[ext \d+\])?\s*(?:\(([^()]*)\))?\s*"([^"]*)"\s*\[([^\[\]]*)\](?:\[ext \d+\])?\s*(?:\(([^()]*)\))?` +
			`((?:\s+[a-z]+=\S+)*)\s*(?:#\s*(.*?))?\s*$`),
		heading:          regexp.MustCompile(`^(Chassis \d+( \(guid 0x[0-9a-f]+\))?|Non-Chassis Nodes|Hostname: .*)$`),
		headRemark:       regexp.MustCompile(`^"(.*)"(?: (?:enhanced|base) port 0 lid (\d+) lmc \d+)?(?: \(scp\))?$`),
		switchPortRemark: regexp.MustCompile(`^".*" lid (\d+) (\S+)` + full),
		hcaPortRemark:    regexp.MustCompile(`^lid (\d+) lmc \d+ ".*" lid (\d+) (\S+)` + full),
		link:             regexp.MustCompile(`^(1|2|4|8|12|\?\?)x(\S+)$`),
		managed:          regexp.MustCompile(`^(?:.* - )?MF\d+;([^:;]+):[^/]*((?:/[A-Z]\d+)*)$`),
	}
}

// block is a device as its lines have it.
type block struct {
	Device
	file  string // the file's name for it
	lines []portLine
	at    map[int]int // port number → index of lines
}

// portLine is one end of a cable.
type portLine struct {
	port, peerPort int
	peer           string
	ownGUID        protocol.GUID // 0: not said
	peerGUID       protocol.GUID // 0: not said
	lid            int
	link           link
	linked         bool // the line says how fast it is
	text           string
	line           int
	implied        bool // a netlist left it out, and the other end says it
}

// attributes are what stands before the head of a block.
type attributes struct {
	guid, system, port0 protocol.GUID
	of                  string // switch, ca or rt: whose GUID it is
	line                int
}

// take notes an attribute.
func (a *attributes) take(m []string, line int) error {
	name, value := m[1], m[2]
	switch name {
	case "vendid", "devid":
		if _, err := parseHex(value, 32); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	case "sysimgguid":
		guid, err := parseHex(value, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		a.system = guid
		return nil
	case "switchguid", "caguid", "hcaguid", "rtguid":
		return a.takeGUID(m, line)
	default:
		return fmt.Errorf("%s is not an attribute that is known here", quote(name))
	}
}

func (a *attributes) takeGUID(m []string, line int) error {
	if a.of != "" {
		return fmt.Errorf("a second GUID, after that of line %d, before any block", a.line)
	}
	guid, err := parseGUID(m[2], true)
	if err != nil {
		return fmt.Errorf("%s: %w", m[1], err)
	}
	a.of, a.guid, a.line = strings.TrimPrefix(strings.TrimSuffix(m[1], "guid"), "h"), guid, line
	if m[3] != "" {
		if a.port0, err = parseGUID(m[3], false); err != nil {
			return fmt.Errorf("%s: port: %w", m[1], err)
		}
	}
	return nil
}

// parseHead makes a block of its head and of the attributes before it.
func (g grammar) parseHead(m []string, a attributes, line int) (block, error) {
	kind := map[string]Kind{"Switch": Switch, "Ca": HCA, "Hca": HCA, "Rt": Router}[m[1]]
	of := map[Kind]string{Switch: "switch", HCA: "ca", Router: "rt"}[kind]
	ports, err := strconv.Atoi(m[2])
	switch {
	case err != nil || ports < 1 || ports > maxPorts:
		return block{}, fmt.Errorf("%s is no number of ports: 1 to %d", quote(m[2]), maxPorts)
	case m[3] == "":
		return block{}, errors.New("the device has no name")
	case a.of == "":
		return block{}, fmt.Errorf("%s %q has no %sguid before it", m[1], m[3], of)
	case a.of != of:
		return block{}, fmt.Errorf("%s %q has a %sguid before it (line %d)", m[1], m[3], a.of, a.line)
	}
	b := block{
		Device: Device{Kind: kind, GUID: a.guid, SystemGUID: a.system, Name: m[3], Ports: ports, PortGUIDs: map[int]protocol.GUID{}, LIDs: map[int]int{}, Line: line},
		file:   m[3], at: map[int]int{},
	}
	return b, g.describe(&b, m[4])
}

// describe reads the remark behind a head.
func (g grammar) describe(b *block, rest string) error {
	if rest == "" {
		return nil
	}
	remark, ok := strings.CutPrefix(rest, "#")
	if !ok {
		return fmt.Errorf("%s does not belong behind a device's name", quote(rest))
	}
	remark = strings.TrimSpace(remark)
	if !strings.HasPrefix(remark, `"`) {
		return nil // a remark of a person's
	}
	m := g.headRemark.FindStringSubmatch(remark)
	if m == nil {
		return fmt.Errorf("the remark %s is not one that ibnetdiscover writes, or is cut off", quote(remark))
	}
	if name := cleanName(m[1]); name != "" {
		b.Name = name
		if b.Kind == Switch {
			b.Name = g.switchName(name)
		}
	}
	b.Aggregation = b.Kind == HCA && strings.Contains(m[1], "Aggregation Node")
	return nil
}

// cleanName leaves what can be printed.
func cleanName(s string) string {
	printable := strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(printable)
}

// switchName takes the operating system's make-up off a managed switch's description: "MF0;leaf-1:MQM9700/U1" is leaf-1. A chassis'
// switches keep what tells them apart: "SwitchX - MF0;core:SX6536/L01/U1" is core/L01/U1.
func (g grammar) switchName(description string) string {
	m := g.managed.FindStringSubmatch(description)
	if m == nil {
		return description
	}
	if m[2] == "/U1" {
		return m[1]
	}
	return m[1] + m[2]
}

// parsePort reads a cabled port's line.
func (g grammar) parsePort(b *block, m []string, line int) (portLine, error) {
	p := portLine{peer: m[3], line: line}
	var err error
	if p.port, err = parsePortNumber(m[1]); err != nil {
		return p, err
	}
	if p.port > b.Ports {
		return p, fmt.Errorf("port %d of %q, which has %d", p.port, b.file, b.Ports)
	}
	if p.peerPort, err = parsePortNumber(m[4]); err != nil {
		return p, err
	}
	if m[2] != "" {
		if p.ownGUID, err = parseGUID(m[2], false); err != nil {
			return p, err
		}
	}
	if m[5] != "" {
		if p.peerGUID, err = parseGUID(m[5], false); err != nil {
			return p, err
		}
	}
	if err := p.takeOptions(m[6]); err != nil {
		return p, err
	}
	return p, g.remark(&p, m[7])
}

// takeOptions reads what the simulator lets follow a port: the width of the link.
func (p *portLine) takeOptions(words string) error {
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		if name != "w" || !map[string]bool{"1": true, "4": true, "8": true, "12": true}[value] {
			return fmt.Errorf("%s is not an option that is known here", quote(word))
		}
		p.link.width = value + "X"
	}
	return nil
}

// remark reads ibnetdiscover's remark behind a port: LIDs and the link's speed.
func (g grammar) remark(p *portLine, remark string) error {
	var m []string
	switch {
	case strings.HasPrefix(remark, `"`):
		m = g.switchPortRemark.FindStringSubmatch(remark)
		if m != nil {
			m = []string{"", "0", m[1], m[2]}
		}
	case strings.HasPrefix(remark, "lid "):
		m = g.hcaPortRemark.FindStringSubmatch(remark)
	default:
		return nil // none, or a person's
	}
	if m == nil {
		return fmt.Errorf("the remark %s is not one that ibnetdiscover writes, or is cut off", quote(remark))
	}
	lid, err := strconv.ParseUint(m[1], 10, 16)
	if err != nil {
		return fmt.Errorf("lid %s is larger than any", m[1])
	}
	p.lid = int(lid)
	if p.link, err = g.parseLink(m[3]); err != nil {
		return err
	}
	p.linked = true
	return nil
}

func parsePortNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxPorts {
		return 0, fmt.Errorf("%s is no port: 1 to %d", quote(s), maxPorts)
	}
	return n, nil
}

// parseGUID reads a GUID, in hex. Zero is none.
func parseGUID(s string, prefixed bool) (protocol.GUID, error) {
	if !prefixed && !strings.HasPrefix(s, "0x") {
		s = "0x" + s
	}
	guid, err := parseHex(s, 64)
	if err == nil && guid == 0 {
		err = errors.New("zero is no GUID")
	}
	return guid, err
}

func parseHex(s string, bits int) (protocol.GUID, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || strings.ContainsAny(digits, "_+-") {
		return 0, fmt.Errorf("%s is no number of 0x and hex digits", quote(s))
	}
	n, err := strconv.ParseUint(digits, 16, bits)
	if err != nil {
		return 0, fmt.Errorf("%s is no number of 0x and at most %d hex digits", quote(s), bits/4)
	}
	return protocol.GUID(n), nil
}
