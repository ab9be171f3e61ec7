package delivery

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

func TestOnlyEvidenceOfThisVeryWipeOnEveryDeviceIsClean(t *testing.T) {
	t.Parallel()
	i := Instance{Allocation: lease.Allocation{Node: ids.Make[ids.Node](), Slots: lease.Slots{From: 8, To: 16}}}
	for name, c := range map[string]struct {
		spoil func(e *protocol.WipeEvidence)
		want  protocol.WipeStatus
	}{
		"all is well":                    {func(*protocol.WipeEvidence) {}, protocol.Wiped},
		"more slots than were asked for": {func(e *protocol.WipeEvidence) { e.Slots = protocol.Slots{From: 0, To: 64} }, protocol.Wiped},
		"fewer slots":                    {func(e *protocol.WipeEvidence) { e.Slots.To = 15 }, protocol.WipeFailed},
		"an old wipe's evidence":         {func(e *protocol.WipeEvidence) { e.Nonce = "yesterday" }, protocol.WipeFailed},
		"another node's evidence":        {func(e *protocol.WipeEvidence) { e.NodeID = ids.Make[ids.Node]().String() }, protocol.WipeFailed},
		"another lease's evidence":       {func(e *protocol.WipeEvidence) { e.LeaseID = "lease_other" }, protocol.WipeFailed},
		"no device":                      {func(e *protocol.WipeEvidence) { e.Devices = nil }, protocol.WipeFailed},
		"a device that cannot be wiped":  {func(e *protocol.WipeEvidence) { e.Devices[1].Status = protocol.WipeUnsupported }, protocol.WipeUnsupported},
		"a device that was not wiped":    {func(e *protocol.WipeEvidence) { e.Devices[0].Status = protocol.WipeFailed }, protocol.WipeFailed},
		"a status that nobody knows":     {func(e *protocol.WipeEvidence) { e.Devices[0].Status = "fine" }, protocol.WipeFailed},
		"samples that still hold data":   {func(e *protocol.WipeEvidence) { e.Devices[1].ReadBackDirty = 1 }, protocol.WipeFailed},
		"failure outweighs what cannot be": {func(e *protocol.WipeEvidence) {
			e.Devices[0].Status, e.Devices[1].Status = protocol.WipeFailed, protocol.WipeUnsupported
		}, protocol.WipeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			evidence := protocol.WipeEvidence{
				LeaseID: "lease_1", NodeID: i.Node.String(), Nonce: "n", Slots: protocol.Slots{From: 8, To: 16},
				Devices: []protocol.DeviceWipe{{Kind: "nvme", Status: protocol.Wiped}, {Kind: "gpu_memory", Status: protocol.Wiped, ReadBackSamples: 64}},
			}
			c.spoil(&evidence)
			got, detail := judgeWipe(i, Operation{Spec: marshal(t, protocol.WipeSpec{LeaseID: "lease_1", Nonce: "n"}), Evidence: marshal(t, evidence)})
			require.Equal(t, c.want, got)
			require.Equal(t, got == protocol.Wiped, detail == "", "what is not clean says why")
		})
	}
	for _, unreadable := range []string{"", "[]", `{"devices": 7}`} {
		got, _ := judgeWipe(i, Operation{Spec: marshal(t, protocol.WipeSpec{}), Evidence: json.RawMessage(unreadable)})
		require.Equal(t, protocol.WipeFailed, got)
	}
}

func marshal(t *testing.T, v any) json.RawMessage {
	t.Helper()
	body, err := json.Marshal(v)
	require.NoError(t, err)
	return body
}

func TestPausesDoubleUpToTheirCap(t *testing.T) {
	t.Parallel()
	p := DefaultPolicy()
	require.Equal(t, p.Backoff, p.pause(1))
	require.Equal(t, 4*p.Backoff, p.pause(3))
	require.Equal(t, p.BackoffCap, p.pause(1000))
}
