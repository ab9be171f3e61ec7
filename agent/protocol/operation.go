package protocol

import "time"

// OperationKind says what an operation does. Node agents and fabric agents each know their own.
type OperationKind string

// The kinds of operation, with the type of their spec and of their evidence.
const (
	Prepare         OperationKind = "prepare"          // PrepareSpec → PrepareEvidence: preflight, container or image, limits, scratch
	Grant           OperationKind = "grant"            // GrantSpec → GrantEvidence: the lease's SSH keys in
	Revoke          OperationKind = "revoke"           // RevokeSpec → RevokeEvidence: keys out, sessions ended, verified
	Wipe            OperationKind = "wipe"             // WipeSpec → WipeEvidence, signed
	ObservePKeys    OperationKind = "observe_pkeys"    // ObservePKeysSpec → PKeyObservation, signed: the second witness
	ApplyPartitions OperationKind = "apply_partitions" // ApplyPartitionsSpec → FabricObservation, signed: the first witness
	ObserveFabric   OperationKind = "observe_fabric"   // ObserveFabricSpec → FabricObservation, signed: audit, changes nothing
)

// Operation is one piece of work for one agent. An agent journals it before it starts, and refuses it (state fenced) when
// Epoch is below the highest epoch it has seen on any slot that Slots covers (a fabric agent: on the fabric).
type Operation struct {
	ID       string        `json:"id"`
	Kind     OperationKind `json:"kind"`
	LeaseID  string        `json:"lease_id,omitempty"`
	Epoch    int64         `json:"epoch"`
	Slots    Slots         `json:"slots"` // nodes only
	Spec     Raw           `json:"spec"`
	PickUpBy time.Time     `json:"pick_up_by"`
	DoneBy   time.Time     `json:"done_by"`
}

// Slots is a half-open range of a node's slot line, 8 slots a GPU bay: [8i, 8i+8) is bay i.
type Slots struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Overlaps reports whether the two ranges share a slot.
func (s Slots) Overlaps(o Slots) bool { return s.From < o.To && o.From < s.To }

// Operations is the answer to a poll, oldest first; empty when the wait ran out.
type Operations struct {
	Operations []Operation `json:"operations"`
}

// Progress tells how far a running operation is. It is also the pick-up notice: an agent sends 0 percent when it begins.
type Progress struct {
	Percent int       `json:"percent"` // 0…100
	Phase   string    `json:"phase"`   // e.g. "preflight", "imaging"
	At      time.Time `json:"at"`
}

// ResultState is how an operation ended.
type ResultState string

// The ends of an operation.
const (
	Succeeded ResultState = "succeeded"
	Failed    ResultState = "failed"
	Fenced    ResultState = "fenced" // refused: its epoch was too old; nothing was done
)

// Result closes an operation. Evidence is kept also when it failed, as far as there is any. Signed, for kinds that say so,
// holds the same evidence as its payload, signed with the agent's key.
type Result struct {
	State      ResultState `json:"state"`
	Fault      *Fault      `json:"fault,omitempty"` // set unless succeeded
	StartedAt  time.Time   `json:"started_at"`
	FinishedAt time.Time   `json:"finished_at"`
	Evidence   Raw         `json:"evidence,omitempty"`
	Signed     *Envelope   `json:"signed,omitempty"`
}

// Fault says why. Code is stable kebab-case; Retryable means that the same operation may pass later on the same agent.
type Fault struct {
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	Retryable bool   `json:"retryable"`
}

// Codes of faults that both sides know.
const (
	FaultPortsNotClear = "ports-not-clear"  // the ports hold partition keys that no new tenant may meet, or cannot be read: the fabric's affair
	FaultInvalidSpec   = "invalid-spec"     // what was asked makes no sense; no machine could do it
	FaultNotPickedUp   = "not-picked-up"    // the control plane's word: the agent did not come for the work in time
	FaultNotDoneInTime = "not-done-in-time" // the control plane's word: the agent came for the work and did not finish it in time
	FaultSilent        = "node-silent"      // the control plane's word: no heartbeat while the work is under way
)

// PrepareSpec readies the slots for a tenant.
type PrepareSpec struct {
	LeaseID    string   `json:"lease_id"`
	Hostname   string   `json:"hostname"`    // as the tenant will see it
	Mode       string   `json:"mode"`        // bare_metal, shared
	GPUUUIDs   []string `json:"gpu_uuids"`   // expected in the bays that the slots cover
	MIGProfile string   `json:"mig_profile"` // e.g. "3g.40gb"; "" for whole GPUs
	PortGUIDs  []GUID   `json:"port_guids"`  // HCA ports that come with the slots
	Image      string   `json:"image"`
	UserData   string   `json:"user_data,omitempty"`
	// Source is the image's file, for a machine that is leased whole and has a disk to be written.
	Source *Image `json:"source,omitempty"`
	// ManagedLow and ManagedHi are the keys that are ours on the ports' fabric, less Reserved: none of them may be in the ports' tables, nor full
	// membership of the default partition. Others are foreign, and nobody's business here. Both 0: every key is taken for ours.
	ManagedLow PKey   `json:"managed_low,omitempty"`
	ManagedHi  PKey   `json:"managed_high,omitempty"`
	Reserved   []PKey `json:"reserved,omitempty"`
}

// PrepareEvidence lists what was checked and done.
type PrepareEvidence struct {
	Checks      []Check `json:"checks"`
	ImageDigest string  `json:"image_digest,omitempty"`
}

// Check is one preflight check.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"`
}

// GrantSpec lets the lease's people in. It replaces the whole set of keys each time.
type GrantSpec struct {
	LeaseID        string    `json:"lease_id"`
	User           string    `json:"user"` // log-in name, "lease" unless the site says otherwise
	AuthorizedKeys []string  `json:"authorized_keys"`
	NotAfter       time.Time `json:"not_after"` // the agent itself ends access then, even when it is cut off
	// Seed is for a machine that is leased whole: its tenant's system lets the keys in, and the agent is gone by then.
	Seed *Seed `json:"seed,omitempty"`
}

// GrantEvidence is where to log in.
type GrantEvidence struct {
	Host     string   `json:"host"`
	Port     int      `json:"port"`
	User     string   `json:"user"`
	HostKeys []string `json:"host_keys"` // authorized_keys form, for the customer's known_hosts
}

// RevokeSpec ends the lease's access.
type RevokeSpec struct {
	LeaseID string `json:"lease_id"`
}

// RevokeEvidence says what was ended and that a fresh log-in attempt was refused.
type RevokeEvidence struct {
	SessionsEnded  int  `json:"sessions_ended"`
	ProcessesEnded int  `json:"processes_ended"`
	LoginRefused   bool `json:"login_refused"` // verified by trying
}

// WipeSpec erases what the tenant could have written in these slots.
type WipeSpec struct {
	LeaseID string `json:"lease_id"`
	Nonce   string `json:"nonce"`
}

// WipeEvidence is the wipe certificate's content, one row a device.
type WipeEvidence struct {
	LeaseID string       `json:"lease_id"`
	NodeID  string       `json:"node_id"`
	Nonce   string       `json:"nonce"`
	Slots   Slots        `json:"slots"`
	Devices []DeviceWipe `json:"devices"`
}

// WipeStatus is how one device came out. Unsupported and failed are different, and neither is clean.
type WipeStatus string

// The ends of a device's wipe.
const (
	Wiped           WipeStatus = "wiped"
	WipeUnsupported WipeStatus = "unsupported"
	WipeFailed      WipeStatus = "failed"
)

// DeviceWipe is one device: what it is, what it can do, what was done.
type DeviceWipe struct {
	Kind       string     `json:"kind"`       // gpu_memory, nvme, scratch, mig_layout, hca_config, tpm, bios
	Identity   string     `json:"identity"`   // serial, UUID or GUID
	Capability string     `json:"capability"` // what the device says it can, e.g. "sanitize: crypto, block"
	Method     string     `json:"method"`     // what was used
	Status     WipeStatus `json:"status"`
	Detail     string     `json:"detail,omitempty"`
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt time.Time  `json:"finished_at"`
	// ReadBackSamples counts the places that were read after the wipe, ReadBackDirty those that still held data.
	ReadBackSamples int `json:"read_back_samples"`
	ReadBackDirty   int `json:"read_back_dirty"`
}

// ObservePKeysSpec asks a node agent to read its own ports' P_Key tables.
type ObservePKeysSpec struct {
	Nonce     string `json:"nonce"`
	PortGUIDs []GUID `json:"port_guids"`
}

// PKeyObservation is the second witness: what the host's own adapters say (sysfs pkeys/), not what the manager believes.
type PKeyObservation struct {
	NodeID     string      `json:"node_id"`
	Nonce      string      `json:"nonce"`
	ObservedAt time.Time   `json:"observed_at"`
	Ports      []PortTable `json:"ports"`
}

// PortTable is one port's P_Key table. Keys is indexed as the table is, trailing zeros cut; Readable false means unknown.
type PortTable struct {
	GUID     GUID   `json:"guid"`
	Readable bool   `json:"readable"`
	Keys     []PKey `json:"keys"`
	// Source is who said so: the port itself (smp), its host (sysfs), a simulator (sim), or only the manager (ufm).
	Source string `json:"source"`
	Detail string `json:"detail,omitempty"`
}

// ApplyPartitionsSpec is the whole desired set of the managed range of one fabric, never a difference.
type ApplyPartitionsSpec struct {
	Nonce      string      `json:"nonce"`
	Partitions []Partition `json:"partitions"`
	ManagedLow PKey        `json:"managed_low"` // partitions outside [low, high] are foreign: kept and reported
	ManagedHi  PKey        `json:"managed_high"`
	// AllowShrink lifts the refusal of a desired set that drops more than half of the members at once.
	AllowShrink bool `json:"allow_shrink"`
	// Observe lists HCA ports to read back besides those that changed, e.g. former members.
	Observe []GUID `json:"observe"`
	// Reserved lists keys within [low, high] that are somebody else's: foreign too.
	Reserved []PKey `json:"reserved,omitempty"`
	// Repair lists HCA ports that were seen to hold something else than the set says although the manager was told: those that still do
	// are to be written anew, whatever the manager believes.
	Repair []GUID `json:"repair,omitempty"`
}

// Partition is one lease's isolation: full membership for exactly these HCA ports, at index 0.
type Partition struct {
	PKey    PKey   `json:"pkey"` // base, without the membership bit
	Name    string `json:"name"` // [a-z0-9-], e.g. the lease's id with dashes
	Members []GUID `json:"members"`
}

// ObserveFabricSpec reads tables without changing any. No ports means every HCA port.
type ObserveFabricSpec struct {
	Nonce string `json:"nonce"`
	Ports []GUID `json:"ports"`
}

// FabricObservation is the first witness: what both ends of each link really hold, read with SMPs from the ports.
type FabricObservation struct {
	FabricID   string      `json:"fabric_id"`
	Nonce      string      `json:"nonce"`
	Epoch      int64       `json:"epoch"`
	ObservedAt time.Time   `json:"observed_at"`
	Ports      []LinkState `json:"ports"`
	// Converged says that every port that was asked for agrees with the desired set. Unreachable is not converged.
	Converged bool           `json:"converged"`
	Sweeps    int            `json:"sweeps"` // how many times the manager was signalled
	Checks    []PathCheck    `json:"checks"`
	Posture   []PostureCheck `json:"posture"`
	// Foreign lists partitions outside the managed range that were seen; they are never touched.
	Foreign []PKey `json:"foreign"`
	// Repaired lists the ports that were written anew because they were to be repaired and needed it; Ports says what came of it.
	Repaired []GUID `json:"repaired,omitempty"`
}

// LinkState is both ends of an HCA port's link.
type LinkState struct {
	GUID       GUID      `json:"guid"`
	HCA        PortTable `json:"hca"`
	SwitchGUID GUID      `json:"switch_guid"`
	SwitchPort int       `json:"switch_port"`
	Switch     PortTable `json:"switch"` // GUID is the switch's
}

// PathCheck is one PathRecord query. The negative check wants false (another tenant is not reachable), the positive control
// wants true, so that a broken query cannot pass as isolation.
type PathCheck struct {
	From  GUID    `json:"from"`
	To    GUID    `json:"to"`
	Want  Verdict `json:"want"`
	Found Verdict `json:"found"`
}
