package protocol_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func at(second int) time.Time { return time.Date(2027, 3, 1, 12, 0, second, 123456000, time.UTC) }

// messages has one filled value of every struct of the protocol; a struct that is only ever a part of another one has one all
// the same, so that nobody has to think about which is which.
func messages() []any {
	portTable := protocol.PortTable{
		GUID: 0x2c90300000011, Readable: true, Keys: []protocol.PKey{0x8012, 0x7fff}, Source: "sysfs", Detail: "mlx5_0/1",
	}
	link := protocol.Link{FromGUID: 0x2c90100000010, FromPort: 33, ToGUID: 0x2c90200000010, ToPort: 1, RateGbps: 400, Width: "4X"}
	topologyPort := protocol.TopologyPort{
		GUID: 0x2c90300000011, NodeGUID: 0x2c90300000010, Description: "gpu-h100-01 mlx5_0", LID: 7, SwitchGUID: 0x2c90100000010, SwitchPort: 1, RateGbps: 400,
	}
	sw := protocol.Switch{GUID: 0x2c90100000010, Name: "leaf-p1-r1", Ports: 64, Level: 1, Pod: "pod-1"}
	topology := protocol.Topology{Switches: []protocol.Switch{sw}, Links: []protocol.Link{link}, Ports: []protocol.TopologyPort{topologyPort}}
	posture := protocol.PostureCheck{Item: "default_membership_limited", Verdict: protocol.True, Detail: "partitions.conf"}
	controller := protocol.Controller{Driver: "opensm", Version: "OpenSM 3.3.23", SMGUID: 0x2c90300000001, MaxPKeysPerPort: 31}
	fabric := protocol.FabricInventory{Controller: controller, Topology: topology, Posture: []protocol.PostureCheck{posture}}
	gpu := protocol.GPU{
		UUID: "GPU-00000000-0000-0000-0000-000000000001", Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", Serial: "165",
		MemoryBytes: 85520809984, PCIAddress: "0000:1b:00.0", NUMANode: 0, MIGCapable: true, MIGEnabled: true, VBIOS: "96.00.99.00.01", NVLinkDomain: "nvl-1",
	}
	port := protocol.HCAPort{
		Number: 1, GUID: 0x2c90300000011, LinkLayer: "InfiniBand", State: "ACTIVE", PhysicalState: "LinkUp", RateGbps: 400, Width: "4X", LID: 7, SMLID: 1,
	}
	hca := protocol.HCA{
		Device: "mlx5_0", NodeGUID: 0x2c90300000010, BoardID: "MT_0000000838", Firmware: "28.39.1002", PCIAddress: "0000:1a:00.0", NUMANode: 0, Ports: []protocol.HCAPort{port},
	}
	disk := protocol.Disk{Name: "nvme0n1", Model: "SAMSUNG MZQL23T8", Serial: "S64", Firmware: "GDC5602Q", SizeBytes: 3840755982336}
	node := protocol.NodeInventory{
		Hostname: "gpu-h100-01", Serial: "SIM-1", Manufacturer: "Dell", Product: "XE9680", BMCAddress: "10.0.0.1", CPUModel: "Xeon 8480C", CPUCores: 112,
		MemoryBytes: 2199023255552, Kernel: "6.8.0", Driver: "580.105.08", GPUs: []protocol.GPU{gpu}, HCAs: []protocol.HCA{hca}, Disks: []protocol.Disk{disk},
	}
	condition := protocol.Condition{
		Name: "gpu-xid-79", Device: gpu.UUID, Class: protocol.PreventsAllocation, Onset: at(1), Evidence: "GPU has fallen off the bus", Exit: "reboot",
	}
	sample := protocol.Sample{At: at(2), Device: gpu.UUID, Values: map[string]float64{"gpu_utilization_percent": 97.5, "gpu_power_watts": 641}}
	operation := protocol.Operation{
		ID: "op_01", Kind: protocol.Prepare, LeaseID: "lease_01", Epoch: 3, Slots: protocol.Slots{From: 0, To: 64},
		Spec: protocol.Raw(`{"lease_id":"lease_01"}`), PickUpBy: at(3), DoneBy: at(4),
	}
	fault := protocol.Fault{Code: "wipe-failed", Detail: "2 of 64 samples still hold data", Retryable: true}
	signature := protocol.Signature{KeyID: "agent_01", Sig: []byte("signature")}
	envelope := protocol.Envelope{PayloadType: protocol.PayloadPKeyObservation, Payload: []byte(`{"nonce":"n"}`), Signatures: []protocol.Signature{signature}}
	check := protocol.Check{Name: "gpu_count", Verdict: protocol.True, Detail: "8 of 8"}
	wiped := protocol.DeviceWipe{
		Kind: "nvme", Identity: "S64", Capability: "sanitize: crypto, block", Method: "sanitize crypto", Status: protocol.Wiped, Detail: "SSTAT 0x101",
		StartedAt: at(5), FinishedAt: at(6), ReadBackSamples: 64, ReadBackDirty: 0,
	}
	partition := protocol.Partition{PKey: 0x12, Name: "lease-01", Members: []protocol.GUID{0x2c90300000011}}
	linkState := protocol.LinkState{
		GUID: 0x2c90300000011, HCA: portTable, SwitchGUID: 0x2c90100000010, SwitchPort: 1,
		Switch: protocol.PortTable{GUID: 0x2c90100000010, Readable: false, Keys: []protocol.PKey{}, Source: "smp", Detail: "timeout"},
	}
	path := protocol.PathCheck{From: 0x2c90300000011, To: 0x2c90300000021, Want: protocol.False, Found: protocol.Unknown}
	image := protocol.Image{URL: "https://images.example.com/debian-12.qcow2", Format: "qcow2", SHA256: "00", SizeBytes: 1024}
	seed := protocol.Seed{InstanceID: "lease_01", Hostname: "l1-n01", UserData: "#cloud-config", PhoneHome: "https://api.example.com/netboot/v1/phone-home/t"}
	return []any{
		protocol.EnrollRequest{
			Token: "t", Kind: protocol.NodeAgent, Name: "gpu-h100-01", Serial: "SIM-1", PublicKey: bytes.Repeat([]byte{7}, 32), BootID: "boot-1", AgentVersion: "0.1.0",
		},
		protocol.EnrollResponse{AgentID: "agent_01", NodeID: "node_01", ServerTime: at(0), HeartbeatSeconds: 10},
		protocol.Inventory{ObservedAt: at(0), BootID: "boot-1", Node: &node},
		protocol.InventoryReply{Changes: []string{"gpu 3: firmware 1 → 2"}, State: "available"},
		node, gpu, hca, port, disk,
		fabric, controller, topology, sw, link, topologyPort, posture,
		protocol.Heartbeat{
			BootID: "boot-1", Sequence: 42, ObservedAt: at(0), Conditions: []protocol.Condition{condition}, Samples: []protocol.Sample{sample},
			Running: []string{"op_01"}, Spooled: 1,
		},
		condition, sample,
		protocol.HeartbeatReply{ServerTime: at(0), OperationsPending: 2, InventoryWanted: true},
		operation, operation.Slots,
		protocol.Operations{Operations: []protocol.Operation{operation}},
		protocol.Progress{Percent: 40, Phase: "imaging", At: at(7)},
		protocol.Result{
			State: protocol.Failed, Fault: &fault, StartedAt: at(8), FinishedAt: at(9), Evidence: protocol.Raw(`{"nonce":"n"}`), Signed: &envelope,
		},
		fault, envelope, signature,
		protocol.PrepareSpec{
			LeaseID: "lease_01", Hostname: "l1-n01", Mode: "bare_metal", GPUUUIDs: []string{gpu.UUID}, MIGProfile: "3g.40gb",
			PortGUIDs: []protocol.GUID{0x2c90300000011}, Image: "debian-12", UserData: "#cloud-config",
			ManagedLow: 0x0100, ManagedHi: 0x01ff, Reserved: []protocol.PKey{0x0123}, Source: &image,
		},
		protocol.PrepareEvidence{Checks: []protocol.Check{check}, ImageDigest: "sha256:00"},
		check,
		protocol.GrantSpec{LeaseID: "lease_01", User: "lease", AuthorizedKeys: []string{"ssh-ed25519 AAAA me"}, NotAfter: at(10), Seed: &seed},
		image, seed,
		protocol.GrantEvidence{Host: "127.0.0.1", Port: 2201, User: "lease", HostKeys: []string{"ssh-ed25519 AAAA"}},
		protocol.RevokeSpec{LeaseID: "lease_01"},
		protocol.RevokeEvidence{SessionsEnded: 1, ProcessesEnded: 2, LoginRefused: true},
		protocol.WipeSpec{LeaseID: "lease_01", Nonce: "n"},
		protocol.WipeEvidence{LeaseID: "lease_01", NodeID: "node_01", Nonce: "n", Slots: protocol.Slots{From: 8, To: 12}, Devices: []protocol.DeviceWipe{wiped}},
		wiped,
		protocol.ObservePKeysSpec{Nonce: "n", PortGUIDs: []protocol.GUID{0x2c90300000011}},
		protocol.PKeyObservation{NodeID: "node_01", Nonce: "n", ObservedAt: at(11), Ports: []protocol.PortTable{portTable}},
		portTable,
		protocol.ApplyPartitionsSpec{
			Nonce: "n", Partitions: []protocol.Partition{partition}, ManagedLow: 0x10, ManagedHi: 0x7000, AllowShrink: true, Observe: []protocol.GUID{0x2c90300000021},
			Reserved: []protocol.PKey{0x20}, Repair: []protocol.GUID{0x2c90300000011},
		},
		partition,
		protocol.ObserveFabricSpec{Nonce: "n", Ports: []protocol.GUID{0x2c90300000011}},
		protocol.FabricObservation{
			FabricID: "fabric_01", Nonce: "n", Epoch: 3, ObservedAt: at(12), Ports: []protocol.LinkState{linkState}, Converged: true, Sweeps: 1,
			Checks: []protocol.PathCheck{path}, Posture: []protocol.PostureCheck{posture}, Foreign: []protocol.PKey{0x7abc},
			Repaired: []protocol.GUID{0x2c90300000011},
		},
		linkState, path,
	}
}

func TestEveryMessageHasItsGoldenForm(t *testing.T) {
	t.Parallel()
	for _, message := range messages() {
		name := reflect.TypeOf(message).Name()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := json.MarshalIndent(message, "", "  ")
			require.NoError(t, err)
			file := filepath.Join("testdata", name+".json")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, append(got, '\n'), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got)+"\n")
		})
	}
}

func TestEveryGoldenFileIsReadBackWithoutLoss(t *testing.T) {
	t.Parallel()
	for _, message := range messages() {
		kind := reflect.TypeOf(message)
		golden, err := os.ReadFile(filepath.Join("testdata", kind.Name()+".json"))
		require.NoError(t, err)
		read := reflect.New(kind)
		decoder := json.NewDecoder(bytes.NewReader(golden))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(read.Interface()), kind.Name())
		again, err := json.MarshalIndent(read.Elem().Interface(), "", "  ")
		require.NoError(t, err)
		require.Equal(t, string(golden), string(again)+"\n", kind.Name())
	}
}

func TestNoMessageIsForgotten(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for _, message := range messages() {
		covered[reflect.TypeOf(message).Name()] = true
	}
	for _, name := range structsOfThePackage(t) {
		require.True(t, covered[name], "protocol.%s has no golden value in messages()", name)
	}
}

func structsOfThePackage(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if _, isStruct := spec.Type.(*ast.StructType); isStruct && spec.Name.IsExported() {
				names = append(names, spec.Name.Name)
			}
			return true
		})
	}
	require.NotEmpty(t, names)
	return names
}

func TestHexIsReadWithAndWithoutItsPrefixAndGarbageIsRefused(t *testing.T) {
	t.Parallel()
	var guid protocol.GUID
	require.NoError(t, guid.UnmarshalText([]byte("2C90300000011")))
	require.Equal(t, "0x0002c90300000011", guid.String())
	var key protocol.PKey
	require.NoError(t, key.UnmarshalText([]byte("0xffff")))
	require.Equal(t, protocol.DefaultFull, key)
	for _, bad := range []string{"", "0x", "0x18002", "zz", "-1", "0x0x1"} {
		require.Error(t, key.UnmarshalText([]byte(bad)), bad)
	}
}

func FuzzHexRoundTrips(f *testing.F) {
	f.Add("0x8001")
	f.Add("7fff")
	f.Fuzz(func(t *testing.T, text string) {
		var key protocol.PKey
		if key.UnmarshalText([]byte(text)) != nil {
			return
		}
		var again protocol.PKey
		require.NoError(t, again.UnmarshalText([]byte(key.String())))
		require.Equal(t, key, again)
	})
}

func TestThePreAuthenticationEncodingIsTheOneOfDSSE(t *testing.T) {
	t.Parallel()
	// The example of the DSSE specification.
	require.Equal(t, "DSSEv1 29 http://example.com/HelloWorld 11 hello world", string(protocol.PAE("http://example.com/HelloWorld", []byte("hello world"))))
}

func TestTheBodyHashOfNothingIsThatOfTheEmptyString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", protocol.BodyHash(nil))
}
