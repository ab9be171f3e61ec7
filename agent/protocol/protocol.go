// Package protocol is what an agent and the control plane say to each other: HTTPS with JSON, always dialled by the agent.
// It uses the standard library only, so that both sides, and anybody's own agent, can import it. The golden files under
// testdata pin the wire form; a field is added, never renamed or given another meaning.
//
// Instants are RFC 3339 in UTC by the agent's own clock and are evidence; the control plane's clock decides.
package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Version is the protocol's major version, the "v1" of its paths.
const Version = 1

// Paths of the control plane's agent API. {id} is an operation's id.
const (
	PathEnroll     = "/agent/v1/enroll"                   // POST EnrollRequest → EnrollResponse; the only unsigned call
	PathInventory  = "/agent/v1/inventory"                // PUT  Inventory → InventoryReply
	PathHeartbeat  = "/agent/v1/heartbeat"                // POST Heartbeat → HeartbeatReply
	PathOperations = "/agent/v1/operations"               // GET  ?wait=30s → Operations (long poll)
	PathProgress   = "/agent/v1/operations/{id}/progress" // POST Progress → 204
	PathResult     = "/agent/v1/operations/{id}/result"   // POST Result → 204; repeats are harmless
)

// HeaderServerTime carries the server's time (RFC 3339) on every answer, a 401 included; an agent keeps the offset, so that a
// wrong clock on a host does not lock it out.
const HeaderServerTime = "Leasehold-Time"

// A request is authorized by "Authorization: Bearer <JWT>", signed with the agent's Ed25519 key (alg EdDSA), alive for at
// most MaxTokenAge. Its claims are: iss and sub = the agent's id; iat, exp; jti = a random id; htm = the method; htu = path
// and query; bh = base64url(SHA-256(body)), also for the empty body.
const (
	MaxTokenAge = 60 * time.Second
	ClaimMethod = "htm"
	ClaimPath   = "htu"
	ClaimBody   = "bh"
)

// HeartbeatEvery is how often an agent reports unless the enrolment's answer says otherwise.
const HeartbeatEvery = 10 * time.Second

// AgentKind says what an agent stands beside.
type AgentKind string

// The kinds of agent.
const (
	NodeAgent   AgentKind = "node"
	FabricAgent AgentKind = "fabric"
)

// EnrollRequest trades a one-time token for an identity. PublicKey is the raw 32-byte Ed25519 key (base64 in JSON).
type EnrollRequest struct {
	Token        string    `json:"token"`
	Kind         AgentKind `json:"kind"`
	Name         string    `json:"name"`             // node: its host name in the site's plan; fabric: the fabric's name
	Serial       string    `json:"serial,omitempty"` // node: the chassis serial; not a unique key
	PublicKey    []byte    `json:"public_key"`
	BootID       string    `json:"boot_id"`
	AgentVersion string    `json:"agent_version"`
}

// EnrollResponse is the identity. Exactly one of NodeID and FabricID is set.
type EnrollResponse struct {
	AgentID          string    `json:"agent_id"`
	NodeID           string    `json:"node_id,omitempty"`
	FabricID         string    `json:"fabric_id,omitempty"`
	ServerTime       time.Time `json:"server_time"`
	HeartbeatSeconds int       `json:"heartbeat_seconds"`
}

// Inventory is a full report; exactly one of Node and Fabric is set. The backend compares it with what it knows: a changed
// GUID, UUID, serial or firmware is an event for an admin, never silently accepted.
type Inventory struct {
	ObservedAt time.Time        `json:"observed_at"`
	BootID     string           `json:"boot_id"`
	Node       *NodeInventory   `json:"node,omitempty"`
	Fabric     *FabricInventory `json:"fabric,omitempty"`
}

// InventoryReply says what the control plane made of the report.
type InventoryReply struct {
	Changes []string `json:"changes"` // differences from what was accepted, in words
	State   string   `json:"state"`   // the node's state afterwards, e.g. "discovered", "available"
}

// NodeInventory is what a machine is made of. Unknown strings are empty, unknown numbers 0.
type NodeInventory struct {
	Hostname     string `json:"hostname"`
	Serial       string `json:"serial"`
	Manufacturer string `json:"manufacturer"`
	Product      string `json:"product"`
	BMCAddress   string `json:"bmc_address,omitempty"`
	CPUModel     string `json:"cpu_model"`
	CPUCores     int    `json:"cpu_cores"`
	MemoryBytes  int64  `json:"memory_bytes"`
	Kernel       string `json:"kernel"`
	Driver       string `json:"driver"` // GPU driver version, "" without one
	GPUs         []GPU  `json:"gpus"`
	HCAs         []HCA  `json:"hcas"`
	Disks        []Disk `json:"disks"`
}

// GPU is one accelerator. PCIAddress is domain:bus:device.function in lower case, e.g. "0000:1b:00.0"; bays are numbered
// by it, since NVML's indices shift when a GPU drops off the bus.
type GPU struct {
	UUID         string `json:"uuid"`
	Vendor       string `json:"vendor"` // nvidia, amd
	Model        string `json:"model"`  // as the driver names it, e.g. "NVIDIA H100 80GB HBM3"
	Serial       string `json:"serial"`
	MemoryBytes  int64  `json:"memory_bytes"`
	PCIAddress   string `json:"pci_address"`
	NUMANode     int    `json:"numa_node"` // −1: unknown
	MIGCapable   bool   `json:"mig_capable"`
	MIGEnabled   bool   `json:"mig_enabled"`
	VBIOS        string `json:"vbios"`
	NVLinkDomain string `json:"nvlink_domain,omitempty"`
}

// HCA is one InfiniBand (or RoCE) adapter as /sys/class/infiniband shows it.
type HCA struct {
	Device     string    `json:"device"` // mlx5_0
	NodeGUID   GUID      `json:"node_guid"`
	BoardID    string    `json:"board_id"`
	Firmware   string    `json:"firmware"`
	PCIAddress string    `json:"pci_address"`
	NUMANode   int       `json:"numa_node"`
	Ports      []HCAPort `json:"ports"`
}

// HCAPort is one port of an HCA. States are the kernel's words without their numbers: DOWN, INIT, ARMED, ACTIVE; and for
// PhysicalState: Sleep, Polling, Disabled, PortConfigurationTraining, LinkUp, LinkErrorRecovery.
type HCAPort struct {
	Number        int    `json:"number"`
	GUID          GUID   `json:"guid"`
	LinkLayer     string `json:"link_layer"` // InfiniBand, Ethernet
	State         string `json:"state"`
	PhysicalState string `json:"physical_state"`
	RateGbps      int    `json:"rate_gbps"`
	Width         string `json:"width"` // 4X
	LID           int    `json:"lid"`
	SMLID         int    `json:"sm_lid"`
}

// Disk is one block device that a tenant could write to.
type Disk struct {
	Name      string `json:"name"` // nvme0n1
	Model     string `json:"model"`
	Serial    string `json:"serial"`
	Firmware  string `json:"firmware"`
	SizeBytes int64  `json:"size_bytes"`
}

// FabricInventory is a subnet as its manager sees it.
type FabricInventory struct {
	Controller Controller     `json:"controller"`
	Topology   Topology       `json:"topology"`
	Posture    []PostureCheck `json:"posture"`
}

// Controller is what manages the subnet.
type Controller struct {
	Driver  string `json:"driver"`  // sim, opensm, ufm
	Version string `json:"version"` // e.g. "OpenSM 3.3.23"
	SMGUID  GUID   `json:"sm_guid"`
	// MaxPKeysPerPort is how many table entries are safe to use on one port, index 0 and the default key included.
	MaxPKeysPerPort int `json:"max_pkeys_per_port"`
}

// Topology is the subnet's graph. HCA ports are listed with the switch port that they hang on.
type Topology struct {
	Switches []Switch       `json:"switches"`
	Links    []Link         `json:"links"` // between switches, each once
	Ports    []TopologyPort `json:"ports"` // HCA ports
}

// Switch is one switch. Level counts from the hosts: 1 leaf, 2 spine, 3 core; 0 unknown.
type Switch struct {
	GUID  GUID   `json:"guid"`
	Name  string `json:"name"`
	Ports int    `json:"ports"`
	Level int    `json:"level"`
	Pod   string `json:"pod,omitempty"`
}

// Link joins two switch ports.
type Link struct {
	FromGUID GUID   `json:"from_guid"`
	FromPort int    `json:"from_port"`
	ToGUID   GUID   `json:"to_guid"`
	ToPort   int    `json:"to_port"`
	RateGbps int    `json:"rate_gbps"`
	Width    string `json:"width"`
}

// TopologyPort is an HCA port with its place.
type TopologyPort struct {
	GUID        GUID   `json:"guid"`      // port GUID
	NodeGUID    GUID   `json:"node_guid"` // the HCA's
	Description string `json:"description"`
	LID         int    `json:"lid"`
	SwitchGUID  GUID   `json:"switch_guid"`
	SwitchPort  int    `json:"switch_port"`
	RateGbps    int    `json:"rate_gbps"`
}

// Verdict is true, false or unknown; unknown never counts as clean.
type Verdict string

// The verdicts.
const (
	True    Verdict = "true"
	False   Verdict = "false"
	Unknown Verdict = "unknown"
)

// PostureCheck is one item of how hardened a fabric is, e.g. {"default_membership_limited", "true"}.
type PostureCheck struct {
	Item    string  `json:"item"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"`
}

// Heartbeat says that an agent lives, how its hardware feels and what its meters read. Sequence counts up within a boot;
// a sequence that was seen before is ignored.
type Heartbeat struct {
	BootID     string      `json:"boot_id"`
	Sequence   int64       `json:"sequence"`
	ObservedAt time.Time   `json:"observed_at"`
	Conditions []Condition `json:"conditions"` // the full set, not a difference
	Samples    []Sample    `json:"samples,omitempty"`
	Running    []string    `json:"running,omitempty"` // ids of operations in hand
	Spooled    int         `json:"spooled,omitempty"` // results that wait to be sent
}

// ConditionClass says what a condition does to a node.
type ConditionClass string

// The classes of condition.
const (
	PreventsAllocation ConditionClass = "prevents_allocation"
	Degrades           ConditionClass = "degrades"
	Informs            ConditionClass = "informs"
)

// Condition is something the matter with the hardware, from Onset until it is no longer reported or its exit was taken.
type Condition struct {
	Name     string         `json:"name"`   // stable, e.g. "gpu-xid-79"
	Device   string         `json:"device"` // GPU UUID, HCA device, disk; "" the node
	Class    ConditionClass `json:"class"`
	Onset    time.Time      `json:"onset"`
	Evidence string         `json:"evidence"`
	Exit     string         `json:"exit"` // clears_itself, reset, reboot, retest, repair
}

// Sample is one reading of one device's meters at one instant. Metric names carry their unit, e.g. gpu_utilization_percent,
// gpu_memory_used_bytes, gpu_power_watts, gpu_temperature_celsius, gpu_sm_clock_mhz, ib_rcv_bytes_per_second.
type Sample struct {
	At     time.Time          `json:"at"`
	Device string             `json:"device"`
	Values map[string]float64 `json:"values"`
}

// HeartbeatReply tells an agent what the control plane wants next.
type HeartbeatReply struct {
	ServerTime        time.Time `json:"server_time"`
	OperationsPending int       `json:"operations_pending"`
	InventoryWanted   bool      `json:"inventory_wanted"`
}

// GUID is an InfiniBand EUI-64, in JSON "0x" and 16 lower-case hex digits.
type GUID uint64

// String returns the JSON form.
func (g GUID) String() string { return fmt.Sprintf("0x%016x", uint64(g)) }

// MarshalText implements encoding.TextMarshaler.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText accepts hex with or without "0x".
func (g *GUID) UnmarshalText(b []byte) error {
	v, err := parseHex(string(b), 64)
	*g = GUID(v)
	return err
}

// PKey is a 16-bit entry of a P_Key table: the low 15 bits name the partition, the top bit is full membership. In JSON
// "0x" and four hex digits.
type PKey uint16

// Well-known keys.
const (
	FullMember       PKey = 0x8000 // the membership bit
	DefaultLimited   PKey = 0x7fff
	DefaultFull      PKey = 0xffff
	FirstPartitionID PKey = 0x0001
	LastPartitionID  PKey = 0x7ffe
)

// Base returns the partition's number, without the membership bit.
func (k PKey) Base() PKey { return k &^ FullMember }

// Full reports full membership.
func (k PKey) Full() bool { return k&FullMember != 0 }

// String returns the JSON form.
func (k PKey) String() string { return fmt.Sprintf("0x%04x", uint16(k)) }

// MarshalText implements encoding.TextMarshaler.
func (k PKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText accepts hex with or without "0x".
func (k *PKey) UnmarshalText(b []byte) error {
	v, err := parseHex(string(b), 16)
	*k = PKey(v) //nolint:gosec // parseHex has checked that it is 16 bits
	return err
}

func parseHex(s string, bits int) (uint64, error) {
	if len(s) > 2 && (s[:2] == "0x" || s[:2] == "0X") {
		s = s[2:]
	}
	v, err := strconv.ParseUint(s, 16, bits)
	if err != nil {
		return 0, fmt.Errorf("parse %q as %d-bit hex: %w", s, bits, err)
	}
	return v, nil
}

// Envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse): Payload is base64 in JSON, signatures are over
// the pre-authentication encoding of type and payload.
type Envelope struct {
	PayloadType string      `json:"payloadType"` //nolint:tagliatelle // DSSE names it so
	Payload     []byte      `json:"payload"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an envelope. KeyID is the agent's or the platform key's id.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"`
}

// PAE is DSSE's pre-authentication encoding, the bytes that are signed.
func PAE(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}

// Types of signed payload.
const (
	PayloadPKeyObservation   = "application/vnd.leasehold.pkey-observation.v1+json"
	PayloadFabricObservation = "application/vnd.leasehold.fabric-observation.v1+json"
	PayloadWipeEvidence      = "application/vnd.leasehold.wipe-evidence.v1+json"
	PayloadInToto            = "application/vnd.in-toto+json"
)

// Raw is a kind-dependent part of a message.
type Raw = json.RawMessage
