package ufm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// port is an adapter's port as UFM lists it.
type port struct {
	GUID        protocol.GUID
	System      protocol.GUID // the adapter's system; 0 unknown
	Name        string        // "<node GUID>_<port number>", as links name it
	Description string
	LID         int
	RateGbps    int
	Active      bool
	State       string // UFM's words, for people
	Peer        end
}

// end is a port of a node; zero: unknown.
type end struct {
	Node protocol.GUID
	Port int
}

// integer is a number that UFM gives as a number or as a string.
type integer int

// UnmarshalJSON implements json.Unmarshaler. What is no number is 0: unknown.
func (i *integer) UnmarshalJSON(data []byte) error {
	n, err := strconv.Atoi(strings.Trim(string(data), `"`))
	if err != nil || n < 0 {
		n = 0
	}
	*i = integer(n)
	return nil
}

// portJSON is the wire form, of GET resources/ports?sys_type=Computer.
type portJSON struct {
	GUID            string  `json:"guid"`
	Name            string  `json:"name"`
	SystemID        string  `json:"systemID"` //nolint:tagliatelle // UFM's name
	SystemName      string  `json:"system_name"`
	DName           string  `json:"dname"`
	NodeDescription string  `json:"node_description"`
	LID             integer `json:"lid"`
	PhysicalState   string  `json:"physical_state"`
	LogicalState    string  `json:"logical_state"`
	ActiveSpeed     string  `json:"active_speed"`
	ActiveWidth     string  `json:"active_width"`
	Peer            string  `json:"peer"` // "<node GUID>_<port number>"
	PeerGUID        string  `json:"peer_guid"`
	PeerNodeGUID    string  `json:"peer_node_guid"`
	PeerPortDName   string  `json:"peer_port_dname"`
}

// decodePorts reads the list of adapters' ports.
func decodePorts(data []byte) (map[protocol.GUID]port, error) {
	var wire []portJSON
	if err := array(data, &wire); err != nil {
		return nil, fmt.Errorf("decode ports: %w", err)
	}
	ports := make(map[protocol.GUID]port, len(wire))
	for _, w := range wire {
		p, err := w.port()
		if err != nil {
			return nil, fmt.Errorf("decode ports: %w", err)
		}
		if _, twice := ports[p.GUID]; twice {
			return nil, fmt.Errorf("decode ports: %v is listed twice", p.GUID)
		}
		ports[p.GUID] = p
	}
	return ports, nil
}

func (w portJSON) port() (port, error) {
	guid, err := decodeGUID(w.GUID)
	if err != nil {
		return port{}, err
	}
	system, _ := decodeGUID(w.SystemID) // not all UFMs say it
	p := port{
		GUID: guid, System: system, Name: strings.ToLower(w.Name), Description: w.NodeDescription, LID: int(w.LID),
		RateGbps: lanesOf(w.ActiveWidth) * laneMbps(w.ActiveSpeed) / 1000, State: strings.Trim(w.LogicalState+", "+w.PhysicalState, ", "),
		Active: strings.EqualFold(strings.TrimSpace(w.LogicalState), "active"),
		Peer:   decodeEnd(w.Peer),
	}
	if p.Description == "" {
		p.Description = strings.TrimSpace(w.SystemName + " " + w.DName)
	}
	if p.Peer == (end{}) {
		p.Peer = endOf(w.PeerNodeGUID, w.PeerPortDName)
	}
	if p.Peer == (end{}) {
		p.Peer = endOf(w.PeerGUID, w.PeerPortDName)
	}
	return p, nil
}

// decodeEnd reads "<node GUID>_<port number>".
func decodeEnd(name string) end {
	node, number, _ := strings.Cut(name, "_")
	return endOf(node, number)
}

func endOf(node, number string) end {
	n, err := strconv.Atoi(number)
	if err != nil {
		return end{}
	}
	return endAt(node, n)
}

func endAt(node string, number int) end {
	guid, err := decodeGUID(node)
	if err != nil || number < 1 || number > 254 {
		return end{}
	}
	return end{Node: guid, Port: number}
}

// link is a cable.
type link struct {
	From, To end
	Width    string
}

// decodeLinks reads GET resources/links. A link with an end that cannot be read is left out: UFM lists half-known ones.
func decodeLinks(data []byte) ([]link, error) {
	var wire []struct {
		SourceGUID      string  `json:"source_guid"`
		SourcePort      integer `json:"source_port"`
		DestinationGUID string  `json:"destination_guid"`
		DestinationPort integer `json:"destination_port"`
		Width           string  `json:"width"`
	}
	if err := array(data, &wire); err != nil {
		return nil, fmt.Errorf("decode links: %w", err)
	}
	links := make([]link, 0, len(wire))
	for _, w := range wire {
		l := link{
			From: endAt(w.SourceGUID, int(w.SourcePort)), To: endAt(w.DestinationGUID, int(w.DestinationPort)), Width: widthName(w.Width),
		}
		if l.From != (end{}) && l.To != (end{}) {
			links = append(links, l)
		}
	}
	return links, nil
}

// decodeSwitches reads GET resources/systems?type=switch.
func decodeSwitches(data []byte) (map[protocol.GUID]protocol.Switch, error) {
	var wire []struct {
		GUID       string            `json:"guid"`
		Type       string            `json:"type"`
		SystemName string            `json:"system_name"`
		Ports      []json.RawMessage `json:"ports"`
	}
	if err := array(data, &wire); err != nil {
		return nil, fmt.Errorf("decode systems: %w", err)
	}
	switches := make(map[protocol.GUID]protocol.Switch, len(wire))
	for _, w := range wire {
		guid, err := decodeGUID(w.GUID)
		if err != nil {
			return nil, fmt.Errorf("decode systems: %w", err)
		}
		if w.Type == "" || strings.EqualFold(w.Type, "switch") {
			switches[guid] = protocol.Switch{GUID: guid, Name: w.SystemName, Ports: len(w.Ports)}
		}
	}
	return switches, nil
}

// array decodes a JSON array. null and {} are not empty ones.
func array(data []byte, into any) error {
	if !strings.HasPrefix(strings.TrimSpace(string(data[:min(len(data), 64)])), "[") {
		return fmt.Errorf("not a JSON array: %w", errPartial)
	}
	return json.Unmarshal(data, into)
}

// lanesOf reads "IB_4x" or "4x"; 0 unknown.
func lanesOf(width string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(strings.ToLower(width), "ib_"), "x"))
	if err != nil || n < 1 || n > 12 {
		return 0
	}
	return n
}

func widthName(width string) string {
	if n := lanesOf(width); n > 0 {
		return strconv.Itoa(n) + "X"
	}
	return ""
}

// laneMbps is what one lane carries at a speed; 0 unknown. InfiniBand Architecture Specification, volume 2, by name.
func laneMbps(speed string) int {
	rates := map[string]int{
		"SDR": 2_500, "DDR": 5_000, "QDR": 10_000, "FDR10": 10_000, "FDR": 14_000, "EDR": 25_000, "HDR": 50_000, "NDR": 100_000, "XDR": 200_000,
	}
	return rates[strings.ToUpper(strings.TrimSpace(speed))]
}
