package fabric

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// The types of an attestation's statement (https://in-toto.io/Statement/v1) and of its predicate.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://leasehold.dev/attestation/isolation/v1"
)

// Statement is what an attestation's envelope holds.
type Statement struct {
	Type          string    `json:"_type"` //nolint:tagliatelle // in-toto names it so
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"` //nolint:tagliatelle // likewise
	Predicate     Predicate `json:"predicate"`
}

// Subject names the partition that the statement is about by the digest of what is wanted of it.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"` // sha256, in hex
}

// Wanted is what is wanted of the lease's partition. After its release it has no members.
type Wanted struct {
	Fabric    ids.Fabric         `json:"fabric"`
	Partition protocol.Partition `json:"partition"` // P_Key 0: the lease ended before it had one
	Low       protocol.PKey      `json:"managed_low"`
	High      protocol.PKey      `json:"managed_high"`
	Reserved  []protocol.PKey    `json:"reserved,omitempty"` // keys within the range that are somebody else's
}

func (w Wanted) bounds() bounds { return bounds{low: w.Low, high: w.High, reserved: w.Reserved} }

// Predicate is all that the verdict follows from, so that whoever has the platform's public key can come to it again: the witnesses'
// own signed words, what they were asked, and what the ports should hold.
type Predicate struct {
	Lease     ids.Lease `json:"lease"`
	Occasion  Occasion  `json:"occasion"`
	IssuedAt  time.Time `json:"issued_at"` // as all instants here by the control plane's clock, but for those in the envelopes
	Epoch     int64     `json:"epoch"`     // of the desired set that the first witness saw in place
	State     State     `json:"state"`     // the partition's, by the rows; "" when there is none
	FreshFor  int64     `json:"fresh_for_seconds"`
	Witnesses []Witness `json:"witnesses"`
	// Desired is a Wanted; the subject's digest is that of its bytes, without insignificant white space.
	Desired  json.RawMessage         `json:"desired"`
	Ports    []AttestedPort          `json:"ports"`
	Checks   []protocol.PathCheck    `json:"checks"` // the first witness's path queries that concern these ports
	Posture  []protocol.PostureCheck `json:"posture"`
	Override string                  `json:"posture_override,omitempty"`
	// Open says why the fabric as a whole does not keep tenants apart, by the latest audits; "" when it does. A lease's own ports may be right
	// meanwhile: another host's are not.
	Open    string   `json:"open,omitempty"`
	Verdict Verdict  `json:"verdict"`
	Reasons []string `json:"reasons"` // why it is not "isolated"
}

// Witness is one agent's word. The platform vouches for its key.
type Witness struct {
	Agent     ids.Agent          `json:"agent"`
	Fabric    *ids.Fabric        `json:"fabric,omitempty"` // it is a fabric's agent
	Node      *ids.Node          `json:"node,omitempty"`   // it is a node's
	PublicKey []byte             `json:"public_key"`       // Ed25519, raw
	Nonce     string             `json:"nonce"`            // what it was asked to say
	AskedAt   time.Time          `json:"asked_at"`
	TakenAt   time.Time          `json:"taken_at"`
	Envelope  *protocol.Envelope `json:"envelope"` // null: it did not say anything
	Trouble   string             `json:"trouble,omitempty"`
}

// AttestedPort is one port with what each witness saw on it. Its finding is that of both together.
type AttestedPort struct {
	GUID     protocol.GUID      `json:"guid"`
	Node     ids.Node           `json:"node"`
	NodeName string             `json:"node_name"`
	HCA      protocol.PortTable `json:"hca"`    // the first witness's reading of the port
	Switch   protocol.PortTable `json:"switch"` // and of the switch port that it hangs on
	Own      protocol.PortTable `json:"own"`    // the node's own reading
	Verdict  protocol.Verdict   `json:"verdict"`
	Detail   string             `json:"detail,omitempty"`
}

// digest is the subject's digest of what is wanted.
func digest(desired []byte) string {
	sum := sha256.Sum256(desired)
	return hex.EncodeToString(sum[:])
}

// said is what the witnesses' envelopes hold, once their signatures, nonces and ages were found good.
type said struct {
	links  map[protocol.GUID]protocol.LinkState
	own    map[protocol.GUID]protocol.PortTable
	checks []protocol.PathCheck
	epoch  int64
	faults []string // why a witness's word does not count
}

// hear reads the witnesses' words. Only what an agent's own signature covers counts.
func (p Predicate) hear() said {
	s := said{links: map[protocol.GUID]protocol.LinkState{}, own: map[protocol.GUID]protocol.PortTable{}}
	for _, w := range p.Witnesses {
		var err error
		if w.Fabric != nil {
			err = s.first(w, p)
		} else {
			err = s.second(w, p)
		}
		if err != nil {
			s.faults = append(s.faults, fmt.Sprintf("witness %s: %s", w.name(), err))
		}
	}
	return s
}

func (w Witness) name() string {
	if w.Node != nil {
		return w.Node.String()
	}
	if w.Fabric != nil {
		return w.Fabric.String()
	}
	return w.Agent.String()
}

// word opens the witness's envelope.
func (w Witness) word(p Predicate, payloadType string, into any) error {
	switch {
	case w.Envelope == nil && w.Trouble != "":
		return fmt.Errorf("%s", w.Trouble)
	case w.Envelope == nil:
		return fmt.Errorf("it has not said anything")
	case p.IssuedAt.Sub(w.TakenAt) > time.Duration(p.FreshFor)*time.Second:
		return fmt.Errorf("its word is of %s", w.TakenAt.Format(time.RFC3339))
	case w.Nonce == "":
		return fmt.Errorf("it was not given a nonce")
	}
	payload, err := opened(*w.Envelope, payloadType, map[string]ed25519.PublicKey{w.Agent.String(): w.PublicKey})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return fmt.Errorf("its word cannot be read")
	}
	return nil
}

func (s *said) first(w Witness, p Predicate) error {
	var seen protocol.FabricObservation
	if err := w.word(p, protocol.PayloadFabricObservation, &seen); err != nil {
		return err
	}
	if seen.Nonce != w.Nonce || seen.FabricID != w.Fabric.String() {
		return fmt.Errorf("its word is about something else")
	}
	for _, link := range seen.Ports {
		s.links[link.GUID] = link
	}
	s.checks, s.epoch = append(s.checks, seen.Checks...), seen.Epoch
	return nil
}

func (s *said) second(w Witness, p Predicate) error {
	var seen protocol.PKeyObservation
	if err := w.word(p, protocol.PayloadPKeyObservation, &seen); err != nil {
		return err
	}
	if w.Node == nil || seen.Nonce != w.Nonce || seen.NodeID != w.Node.String() {
		return fmt.Errorf("its word is about something else")
	}
	for _, table := range seen.Ports {
		for _, port := range p.Ports {
			if port.GUID == table.GUID && port.Node == *w.Node { // a node has no say about another's ports
				s.own[table.GUID] = table
			}
		}
	}
	return nil
}

// assess comes to the verdict: what the witnesses saw against what is wanted. It fills in what each port was seen to hold.
func (p *Predicate) assess() error {
	var desired Wanted
	if err := json.Unmarshal(p.Desired, &desired); err != nil {
		return fmt.Errorf("read what is wanted: %w", err)
	}
	heard := p.hear()
	p.Epoch, p.Checks, p.Reasons = heard.epoch, []protocol.PathCheck{}, nonNil(heard.faults)
	worst := good()
	if detail := p.misfit(desired); detail != "" {
		worst = p.note(worst, unseen("%s", detail))
	}
	concerned := map[protocol.GUID]bool{}
	for i := range p.Ports {
		port := &p.Ports[i]
		concerned[port.GUID] = true
		f := p.assessPort(port, heard, desired)
		port.Verdict, port.Detail = f.verdict, f.detail
		worst = p.note(worst, f.at("port "+port.GUID.String()))
	}
	if p.Open != "" && p.Occasion != AfterRelease {
		worst = p.note(worst, wrong("%s", p.Open))
	}
	for _, check := range heard.checks {
		if concerned[check.From] || concerned[check.To] {
			p.Checks = append(p.Checks, check)
			worst = p.note(worst, assessPath(check))
		}
	}
	p.Verdict = verdictOf(worst.verdict)
	return nil
}

// note keeps the reason of a finding that is not good, and returns the worse of the two.
func (p *Predicate) note(worst, f finding) finding {
	if f.verdict != protocol.True {
		p.Reasons = append(p.Reasons, f.detail)
	}
	return worse(worst, f)
}

// misfit says why the rows themselves do not allow a good verdict; "" when they do.
func (p Predicate) misfit(desired Wanted) string {
	if len(p.Ports) == 0 {
		return "no port was to be witnessed"
	}
	if p.Occasion == AfterRelease {
		switch {
		case len(desired.Partition.Members) > 0:
			return "the partition still has members"
		case p.State != "" && p.State != Clear && p.State != Quarantined && p.State != Free:
			return "the partition is " + string(p.State)
		}
		return ""
	}
	if p.State != Verified {
		return "the partition is " + string(p.State)
	}
	wanted := map[protocol.GUID]bool{}
	for _, port := range desired.Partition.Members {
		wanted[port] = true
	}
	for _, port := range p.Ports {
		if !wanted[port.GUID] {
			return fmt.Sprintf("port %s is not a member", port.GUID)
		}
	}
	if len(wanted) != len(p.Ports) {
		return "the partition has other members"
	}
	return ""
}

// assessPort holds both witnesses' words about a port against what it should hold.
func (p Predicate) assessPort(port *AttestedPort, heard said, desired Wanted) finding {
	link, first := heard.links[port.GUID]
	own, second := heard.own[port.GUID]
	port.HCA, port.Switch, port.Own = tableOf(link.HCA), tableOf(link.Switch), tableOf(own)
	b, key := desired.bounds(), desired.Partition.PKey
	var f finding
	switch {
	case !first:
		f = unseen("the fabric's agent has not seen it")
	case p.Occasion == AfterRelease:
		f = b.vacant(link)
	default:
		f = b.joined(link, key)
	}
	switch {
	case !second:
		return worse(f, unseen("its own node has not seen it"))
	case p.Occasion == AfterRelease:
		return worse(f, b.empty(own).at("its own node's reading"))
	default:
		return worse(f, b.holds(own, key, true).at("its own node's reading"))
	}
}

// tableOf never leaves a list null.
func tableOf(t protocol.PortTable) protocol.PortTable {
	t.Keys = nonNil(t.Keys)
	return t
}

// assessPath judges one path query. A path to another tenant refutes isolation; a control that finds nothing shows that the query does
// not work, and so proves nothing.
func assessPath(check protocol.PathCheck) finding {
	switch {
	case check.Found == check.Want && check.Want != protocol.Unknown:
		return good()
	case check.Want == protocol.False && check.Found == protocol.True:
		return wrong("there is a path from %s to %s", check.From, check.To)
	default:
		return unseen("the path query from %s to %s found %s, not %s", check.From, check.To, check.Found, check.Want)
	}
}

func verdictOf(v protocol.Verdict) Verdict {
	switch v {
	case protocol.True:
		return Proven
	case protocol.False:
		return Refuted
	case protocol.Unknown:
	}
	return Undecided
}
