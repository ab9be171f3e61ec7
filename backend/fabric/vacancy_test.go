package fabric_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

func TestAPortIsVacantOnlyWhenItsNodeReadNoKeyOfOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	node, port := w.nodes[0].node, w.nodes[0].port
	against, err := w.fabric.Vacancy(t.Context(), w.Fabric)
	require.NoError(t, err)
	order := encode(t, protocol.ObservePKeysSpec{Nonce: "n", PortGUIDs: []protocol.GUID{port}})
	table := func(readable bool, keys ...protocol.PKey) protocol.PortTable {
		return protocol.PortTable{GUID: port, Readable: readable, Keys: keys}
	}
	for name, c := range map[string]struct {
		seen protocol.PKeyObservation
		want string
	}{
		"only the default key": {protocol.PKeyObservation{NodeID: node.String(), Nonce: "n", Ports: []protocol.PortTable{table(true, protocol.DefaultLimited)}}, ""},
		"a key of ours": {
			protocol.PKeyObservation{NodeID: node.String(), Nonce: "n", Ports: []protocol.PortTable{table(true, protocol.PKey(7)|protocol.FullMember, protocol.DefaultLimited)}},
			"which it should not",
		},
		"not readable":   {protocol.PKeyObservation{NodeID: node.String(), Nonce: "n", Ports: []protocol.PortTable{table(false)}}, "could not be read"},
		"left out":       {protocol.PKeyObservation{NodeID: node.String(), Nonce: "n"}, "was not read"},
		"another order":  {protocol.PKeyObservation{NodeID: node.String(), Nonce: "m", Ports: []protocol.PortTable{table(true)}}, "about something else"},
		"another's word": {protocol.PKeyObservation{NodeID: "node_x", Nonce: "n", Ports: []protocol.PortTable{table(true)}}, "about something else"},
	} {
		found := against(node, order, encode(t, c.seen))
		if c.want == "" {
			require.Empty(t, found, name)
			continue
		}
		require.Contains(t, found, c.want, name)
	}
	require.NotEmpty(t, against(node, order, json.RawMessage(`"nonsense"`)))
	_, err = w.fabric.Vacancy(t.Context(), ids.Make[ids.Fabric]())
	require.True(t, fault.Is(err, fault.NotFound))
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	body, err := json.Marshal(v)
	require.NoError(t, err)
	return body
}
