// Package ufmtest is a stand-in for a UFM server, for tests: it keeps state, behaves as UFM's public documentation says, and
// misbehaves on demand. Behind its REST interface are ports with tables of their own, at both ends of each link, so that what the
// manager says and what the ports hold can differ, as they do in life.
package ufmtest

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

// ManagerPort is the port of UFM's own host.
const ManagerPort = protocol.GUID(0x0002c9ffff000001)

// Credentials that the server takes.
const (
	User     = "leasehold"
	Password = "correct horse"
	Token    = "t0ken"
)

// Options say which UFM this is.
type Options struct {
	Topology protocol.Topology
	// Release is what it calls itself; "": 6.19.3-2. Below 6.19 it does not tell the default membership; below 6.10 it has neither
	// PUT nor DELETE.
	Release string
	// Deceptive has it claim its release and lack DELETE all the same.
	Deceptive bool
	// Stranger: whoever reads the ports does it from a host like any other, which the administrator tells nothing of others' paths.
	Stranger bool
	// Program has somebody else write the ports' tables, e.g. a real OpenSM: it is given who should be in which partition, full and at
	// index 0. The server's own ports then mean nothing.
	Program func(members map[protocol.PKey][]protocol.GUID) error
}

// Server is the stand-in. Its methods are safe for concurrent use.
type Server struct {
	web     *httptest.Server
	options Options
	caFile  string

	mu         sync.Mutex
	release    release
	partitions map[protocol.PKey]*partition
	everybody  string // the default partition's membership
	tables     map[protocol.GUID]tables
	believed   map[protocol.GUID]string // what was last written to a port, as far as the manager knows
	cut        map[protocol.GUID]bool
	token      string
	smconf     map[string]any
	faults     Faults
	frozen     *state
	gate       chan struct{} // writes wait for it
	quiet      chan struct{} // everybody waits for it
	programErr error
	writes     []string
	calls      []string
}

// partition is one PKey.
type partition struct {
	ipOverIB bool
	members  map[protocol.GUID]member
}

type member struct {
	full, index0 bool
}

// tables are both ends of a link.
type tables struct{ hca, sw []protocol.PKey }

// New starts a server that ends with the test.
func New(t testing.TB, options Options) *Server {
	t.Helper()
	if options.Release == "" {
		options.Release = "6.19.3-2"
	}
	s := &Server{
		options: options, release: parseRelease(options.Release), partitions: map[protocol.PKey]*partition{},
		everybody: limited, tables: map[protocol.GUID]tables{}, believed: map[protocol.GUID]string{}, cut: map[protocol.GUID]bool{}, token: Token,
		smconf: map[string]any{
			"subnet_prefix": "0xfe80000000000000", "m_key": "0x00c0ffee00c0ffee", "sm_key": "0x1122334455667788",
			"sa_key": "0x8877665544332211", "m_key_per_port": true,
		},
	}
	s.partitions[protocol.DefaultLimited] = &partition{ipOverIB: true, members: map[protocol.GUID]member{}}
	s.sweep()
	s.web = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.web.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	s.web.Config.ErrorLog = log.New(io.Discard, "", 0) // cut connections are meant to be
	s.web.StartTLS()
	t.Cleanup(s.close)
	s.caFile = filepath.Join(t.TempDir(), "ufm-ca.pem")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.web.Certificate().Raw})
	require.NoError(t, os.WriteFile(s.caFile, authority, 0o600))
	return s
}

func (s *Server) close() {
	s.Release()
	s.Inject(Faults{})
	s.web.Close()
}

// URL is where it listens, and CAFile what its certificate is verified with.
func (s *Server) URL() string { return s.web.URL }

// CAFile is the authority of its certificate.
func (s *Server) CAFile() string { return s.caFile }

// SetToken replaces the token; the one before has expired.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// SetSMConf replaces the subnet manager's options.
func (s *Server) SetSMConf(options map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.smconf = options
}

// Writes lists the calls that could have changed something, e.g. "PUT /resources/pkeys 0x5".
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// Calls counts the calls so far.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// Hold makes writes wait until Release.
func (s *Server) Hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate == nil {
		s.gate = make(chan struct{})
	}
}

// Release lets waiting writes go.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

// Cut takes a port off the fabric, Join puts it back: it keeps its table meanwhile, and gets what it should have when it is back.
func (s *Server) Cut(guid protocol.GUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[guid] = true
}

// Join undoes Cut. A link that comes up has its tables written anew.
func (s *Server) Join(guid protocol.GUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cut, guid)
	delete(s.believed, guid)
	s.sweep()
}

// Overwrite sets tables behind the manager's back; nil leaves an end as it is.
func (s *Server) Overwrite(guid protocol.GUID, hca, sw []protocol.PKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.tables[guid]
	if hca != nil {
		held.hca = slices.Clone(hca)
	}
	if sw != nil {
		held.sw = slices.Clone(sw)
	}
	s.tables[guid] = held
}

// SetMember is somebody else's hand in UFM: it makes the port a member as the key's top bit says.
func (s *Server) SetMember(key protocol.PKey, guid protocol.GUID, index0 bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partition(key.Base()).members[guid] = member{full: key.Full(), index0: index0}
	s.sweep()
}

// SetEverybody is somebody else's hand on the default partition's membership, "full" or "limited".
func (s *Server) SetEverybody(membership string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everybody = membership
	s.sweep()
}

// Held returns what the ports at both ends really hold.
func (s *Server) Held(guid protocol.GUID) (hca, sw []protocol.PKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.tables[guid]
	return slices.Clone(held.hca), slices.Clone(held.sw)
}

// Members lists a partition's members in UFM.
func (s *Server) Members(key protocol.PKey) []protocol.GUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var members []protocol.GUID
	if p := s.partitions[key]; p != nil {
		for guid := range p.members {
			members = append(members, guid)
		}
	}
	slices.Sort(members)
	return members
}

func (s *Server) partition(key protocol.PKey) *partition {
	p := s.partitions[key]
	if p == nil {
		p = &partition{members: map[protocol.GUID]member{}}
		s.partitions[key] = p
	}
	return p
}

// sweep writes the tables that, as the manager believes, are not as they should be. Like the real one it does not look.
func (s *Server) sweep() {
	if s.options.Program != nil {
		s.program()
		return
	}
	for _, at := range s.options.Topology.Ports {
		want := s.means(at.GUID)
		if text := fmt.Sprint(want); s.believed[at.GUID] != text && !s.cut[at.GUID] {
			s.believed[at.GUID] = text
			held := tables{hca: want, sw: slices.Clone(want)}
			if s.faults.HCAOnly {
				held.sw = s.tables[at.GUID].sw
				delete(s.believed, at.GUID)
			}
			s.tables[at.GUID] = held
		}
	}
}

func (s *Server) program() {
	all := map[protocol.PKey][]protocol.GUID{}
	for key, p := range s.partitions {
		if key != protocol.DefaultLimited {
			all[key] = slices.Sorted(maps.Keys(p.members))
		}
	}
	if err := s.options.Program(all); err != nil {
		s.programErr = err
	}
}

// Failed is what went wrong in Program, if anything did.
func (s *Server) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programErr
}

// means is what the manager means a port to hold.
func (s *Server) means(guid protocol.GUID) []protocol.PKey {
	var first, rest []protocol.PKey
	for key, p := range s.partitions {
		m, is := p.members[guid]
		if key == protocol.DefaultLimited && !is {
			m, is = member{full: s.everybody == full}, true
		}
		switch {
		case !is:
		case m.index0:
			first = append(first, withMembership(key, m.full))
		default:
			rest = append(rest, withMembership(key, m.full))
		}
	}
	slices.Sort(first)
	slices.SortFunc(rest, func(a, b protocol.PKey) int { return int(b.Base()) - int(a.Base()) })
	return slices.Concat(first, rest)
}

func withMembership(key protocol.PKey, isFull bool) protocol.PKey {
	if isFull {
		return key | protocol.FullMember
	}
	return key
}
