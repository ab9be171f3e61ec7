package delivery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

func TestOnlyWhatAMachineDidItselfIsHeldAgainstIt(t *testing.T) {
	t.Parallel()
	for code, blamed := range map[string]bool{
		"preflight-failed":          true,
		protocol.FaultNotDoneInTime: true,
		protocol.FaultPortsNotClear: false, // the fabric left them so: a fabric that fails open must not eat its machines
		protocol.FaultInvalidSpec:   false,
		protocol.FaultNotPickedUp:   false,
		protocol.FaultSilent:        false,
	} {
		require.Equal(t, blamed, Operation{State: Failed, Fault: &protocol.Fault{Code: code}}.blamesNode(), code)
	}
	require.False(t, Operation{State: Fenced, Fault: &protocol.Fault{Code: "stale-epoch"}}.blamesNode())
}
