package ufm_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/conformance"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestUFMWithAReaderOfThePortsConforms(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		t.Helper()
		return newBench(t, ufmtest.Options{}, withReader).rig()
	})
}

func TestUFMsWordAloneConformsAsFarAsItGoes(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		t.Helper()
		return newBench(t, ufmtest.Options{}).rig()
	})
}

func TestAnOldUFMWithAReaderOfThePortsConforms(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		t.Helper()
		rig := newBench(t, ufmtest.Options{Release: "6.7.1"}, withReader).rig()
		rig.Untold = []string{fabric.PostureDefaultLimited}
		for i := range rig.Faults {
			if rig.Faults[i].Name == halfWrites { // it adds, and what was left out is added next
				rig.Faults[i].Passing = true
			}
		}
		return rig
	})
}

const halfWrites = "half of each write is done"

func TestUFMWithAReaderOnAnyHostConforms(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		t.Helper()
		rig := newBench(t, ufmtest.Options{Stranger: true}, withReader).rig()
		rig.Faults = nil // they were gone through with the other readers
		return rig
	})
}

// bench is a driver on a UFM of its own.
type bench struct {
	*ufm.Driver

	server *ufmtest.Server
	config ufm.Config
	ports  []protocol.GUID
}

// withReader has the ports themselves read.
func withReader(c *ufm.Config, s *ufmtest.Server) { c.Ports, c.AcceptManagersWord = s, false }

func newBench(t *testing.T, options ufmtest.Options, change ...func(*ufm.Config, *ufmtest.Server)) bench {
	t.Helper()
	options.Topology = ibsimtest.FatTree(4, 2)
	server := ufmtest.New(t, options)
	config := ufm.Config{
		Server: ufm.Server{
			URL: server.URL(), CAFile: server.CAFile(), Timeout: 2 * time.Second, MaxBodyBytes: 1 << 20,
			Login: ufm.Login{User: ufmtest.User, PasswordFile: secretFile(t, ufmtest.Password)},
			Retry: backoff.Policy{Min: time.Millisecond, Max: 5 * time.Millisecond},
		},
		ManagerPorts: []protocol.GUID{ufmtest.ManagerPort}, AcceptManagersWord: true, StateDir: t.TempDir(),
		Patience: fabric.Patience{Deadline: 1200 * time.Millisecond, Silence: 20 * time.Millisecond, FirstPoll: time.Millisecond, LastPoll: 20 * time.Millisecond},
		Now:      time.Now,
	}
	for _, c := range change {
		c(&config, server)
	}
	b := bench{server: server, config: config}
	b.Driver = b.reopen(t)
	for _, port := range options.Topology.Ports {
		b.ports = append(b.ports, port.GUID)
	}
	return b
}

func (b bench) reopen(t *testing.T) *ufm.Driver {
	t.Helper()
	driver, err := ufm.New(b.config)
	require.NoError(t, err)
	return driver
}

func secretFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	return path
}

func (b bench) rig() conformance.Rig {
	return conformance.Rig{
		Driver: b.Driver,
		Ports:  b.ports,
		Cut:    func(_ *testing.T, port protocol.GUID) { b.server.Cut(port) },
		Join:   func(_ *testing.T, port protocol.GUID) { b.server.Join(port) },
		OverwriteHCA: func(_ *testing.T, port protocol.GUID, keys ...protocol.PKey) {
			b.server.Overwrite(port, keys, nil)
		},
		OverwriteSwitch: func(_ *testing.T, port protocol.GUID, keys ...protocol.PKey) {
			b.server.Overwrite(port, nil, keys)
		},
		Busy: func(*testing.T) func() {
			b.server.Hold()
			return b.server.Release
		},
		Reopen: func(t *testing.T) fabric.Driver {
			t.Helper()
			return b.reopen(t)
		},
		Truth: func(_ *testing.T, _ fabric.Driver, port protocol.GUID) protocol.LinkState {
			hca, sw := b.server.Held(port)
			return protocol.LinkState{
				GUID: port, HCA: protocol.PortTable{Readable: true, Keys: hca}, Switch: protocol.PortTable{Readable: true, Keys: sw},
			}
		},
		Faults:   b.faults(),
		WordOnly: b.config.Ports == nil,
	}
}

// faults are the ways in which UFM, the way to it, or somebody else there fails.
func (b bench) faults() []conformance.Fault {
	inject := func(name string, faults ufmtest.Faults) conformance.Fault {
		return conformance.Fault{
			Name:  name,
			Begin: func(*testing.T) { b.server.Inject(faults) },
			End:   func(*testing.T) { b.server.Inject(ufmtest.Faults{}) },
		}
	}
	passing := func(name string, faults ufmtest.Faults) conformance.Fault {
		fault := inject(name, faults)
		fault.Passing = true
		return fault
	}
	faults := []conformance.Fault{
		inject("unreachable", ufmtest.Faults{Unreachable: true}),
		passing("slow", ufmtest.Faults{Delay: 20 * time.Millisecond}),
		inject("503", ufmtest.Faults{Status: 503}),
		inject("a login page", ufmtest.Faults{HTML: true}),
		inject("a redirection to a login page", ufmtest.Faults{Redirect: true}),
		inject("credentials refused", ufmtest.Faults{Refuse: true}),
		inject("nothing exists, says 200", ufmtest.Faults{Nothing: true}),
		inject("cut short", ufmtest.Faults{Truncated: true}),
		inject("without end", ufmtest.Faults{Endless: true}),
		inject("stale", ufmtest.Faults{Stale: true}),
		inject("from a cache", ufmtest.Faults{Cached: true}),
		inject("dated before the last write", ufmtest.Faults{OldDate: true}),
		inject("half of every list", ufmtest.Faults{HalfAnswers: true}),
		inject("a lease's partition is missing in the list", ufmtest.Faults{HidePartitions: []protocol.PKey{6}}),
		inject("another fabric", ufmtest.Faults{OtherFabric: true}),
		inject("writes are taken and not done", ufmtest.Faults{IgnoreWrites: true}),
		inject(halfWrites, ufmtest.Faults{HalfWrites: true}),
		passing("writes are done and not answered", ufmtest.Faults{LoseAnswers: true}),
		inject("writes are refused", ufmtest.Faults{RefuseWrites: true}),
		inject("keys are not put at index 0", ufmtest.Faults{NoIndex0: true}),
		{
			Name:  "everybody is made a full member of the default partition",
			Begin: func(*testing.T) { b.server.SetEverybody("full") },
			End:   func(*testing.T) { b.server.SetEverybody("limited") },
		},
	}
	if b.config.Ports != nil {
		return append(faults, inject("switch ports are left out", ufmtest.Faults{HCAOnly: true}))
	}
	return append(faults, inject("silent", ufmtest.Faults{Silent: true})) // here only: it takes its time
}
