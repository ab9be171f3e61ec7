package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/client"
)

func TestAnAuditIsToldInAFewLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	told, repair := "the manager was told to write it anew, 3 times", "its file is garbage"
	audit := &client.FabricAudit{
		AskedAt: at, EndedAt: at.Add(1234567 * time.Microsecond), Verdict: client.FabricAuditVerdictDeviating, Ports: 4096, Clean: 4094, Deviating: 1, Unreadable: 1,
		ForeignPkeys: []string{"0x5000"}, Detail: &repair,
	}
	drift := []client.FabricDrift{
		{PortGUID: "0x0002c90300000011", Kind: client.FabricDriftKindFailOpen, What: "HCA port is a full member of the default partition", Onset: at, Repair: &told, GaveUpAt: &at},
		{Kind: client.FabricDriftKindConfiguration, What: "garbage", Onset: at},
		{PortGUID: "0x0002c90300000021", Kind: client.FabricDriftKindMissingKey, What: "HCA port lacks 0x8001", Onset: at, EndedAt: &at},
	}
	var out bytes.Buffer
	describeAudit(&out, audit, drift)
	require.Equal(t, "verdict\tdeviating\n"+
		"ports\t4096: 4094 clean, 1 deviating, 1 unreadable, 0 of no known machine\n"+
		"took\t1.235s\n"+
		"foreign PKeys\t0x5000 (reported, never touched)\n"+
		"detail\tits file is garbage\n"+
		"PORT\tKIND\tSINCE\tUNTIL\tWHAT\tREPAIR\n"+
		"0x0002c90300000011\tfail_open\t2026-03-01 12:00:00Z\tnow\tHCA port is a full member of the default partition\t"+
		"the manager was told to write it anew, 3 times; it did not help: see to it, then audit again\n"+
		"the fabric\tconfiguration\t2026-03-01 12:00:00Z\tnow\tgarbage\t\n", out.String())
}
