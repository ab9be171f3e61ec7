package ufmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// changeJSON is the body of the calls that have one.
type changeJSON struct {
	PKey       string   `json:"pkey"`
	GUIDs      []string `json:"guids"`
	Index0     bool     `json:"index0"`
	IPOverIB   *bool    `json:"ip_over_ib"`
	Membership string   `json:"membership"`
}

// change answers a call that may change something.
func (s *Server) change(w http.ResponseWriter, r *http.Request, path string) {
	path = strings.TrimSuffix(path, "/")
	if s.faults.RefuseWrites {
		s.writes = append(s.writes, r.Method+" "+path)
		http.Error(w, `{"error":"not this one"}`, http.StatusBadRequest)
		return
	}
	key, guids, do, err := s.parse(r, path)
	if err != nil {
		s.writes = append(s.writes, r.Method+" "+path)
		http.Error(w, err.Error(), map[bool]int{true: http.StatusNotFound, false: http.StatusBadRequest}[errors.Is(err, errNoSuchCall)])
		return
	}
	s.writes = append(s.writes, fmt.Sprintf("%s %s %#x", r.Method, strings.SplitAfter(path, "pkey")[0], uint16(key)))
	if !s.faults.IgnoreWrites {
		do(key, half(guids, s.faults.HalfWrites))
		s.sweep()
	}
	if s.faults.LoseAnswers {
		hangUp(w)
		return
	}
	// What the real one answers here is not documented well; nothing relies on it.
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}"))
}

var errNoSuchCall = errors.New("no such call")

type deed func(key protocol.PKey, guids []protocol.GUID)

// parse tells what is to be done.
func (s *Server) parse(r *http.Request, path string) (protocol.PKey, []protocol.GUID, deed, error) {
	modern := s.release.atLeast(6, 10)
	if rest, found := strings.CutPrefix(path, "/resources/pkeys/"); found && r.Method == http.MethodDelete && modern && !s.options.Deceptive {
		name, list, isMembers := strings.Cut(rest, "/guids/")
		if !isMembers {
			return 0, nil, nil, errNoSuchCall
		}
		key, err := parseKey(name)
		if err != nil {
			return 0, nil, nil, err
		}
		guids, err := parseGUIDs(strings.Split(list, ","))
		return key, guids, s.leave, err
	}
	var body changeJSON
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return 0, nil, nil, errNoSuchCall
	}
	key, err := parseKey(body.PKey)
	if err != nil {
		return 0, nil, nil, err
	}
	guids, err := parseGUIDs(body.GUIDs)
	if err != nil {
		return 0, nil, nil, err
	}
	switch {
	case r.Method == http.MethodPost && path == "/actions/remove_guids_from_pkey":
		return key, guids, s.leave, nil
	case r.Method == http.MethodPost && path == "/resources/pkeys":
		return key, guids, s.join(body), nil
	case r.Method == http.MethodPut && path == "/resources/pkeys" && modern:
		join := s.join(body)
		return key, guids, func(key protocol.PKey, guids []protocol.GUID) {
			clear(s.partition(key).members)
			join(key, guids)
		}, nil
	}
	return 0, nil, nil, errNoSuchCall
}

// leave removes members. A partition goes with its last one; who is no member may leave.
func (s *Server) leave(key protocol.PKey, guids []protocol.GUID) {
	p := s.partitions[key]
	if p == nil {
		return
	}
	for _, guid := range guids {
		delete(p.members, guid)
	}
	if len(p.members) == 0 && key != protocol.DefaultLimited {
		delete(s.partitions, key)
	}
}

func (s *Server) join(body changeJSON) deed {
	return func(key protocol.PKey, guids []protocol.GUID) {
		p := s.partition(key)
		p.ipOverIB = body.IPOverIB == nil || *body.IPOverIB
		for _, guid := range guids {
			p.members[guid] = member{full: body.Membership != limited, index0: body.Index0 && !s.faults.NoIndex0}
		}
	}
}

func parseGUIDs(texts []string) ([]protocol.GUID, error) {
	guids := make([]protocol.GUID, 0, len(texts))
	for _, text := range texts {
		n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
		if err != nil || len(text) < 16 || len(text) > 20 {
			return nil, fmt.Errorf("invalid guid %q", text)
		}
		guids = append(guids, protocol.GUID(n))
	}
	return guids, nil
}

// Read reads both ends of the ports' links as SMPs would: what the ports hold, whatever the manager says. It implements the
// driver's PortReader.
func (s *Server) Read(_ context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	links := make([]protocol.LinkState, len(ports))
	for i, guid := range ports {
		links[i] = s.link(guid)
	}
	return links, nil
}

func (s *Server) link(guid protocol.GUID) protocol.LinkState {
	link := protocol.LinkState{
		GUID: guid, HCA: protocol.PortTable{GUID: guid, Source: "smp", Detail: "no answer"}, Switch: protocol.PortTable{Source: "smp", Detail: "no answer"},
	}
	for _, at := range s.options.Topology.Ports {
		if at.GUID == guid && !s.cut[guid] {
			held := s.tables[guid]
			link.SwitchGUID, link.SwitchPort = at.SwitchGUID, at.SwitchPort
			link.HCA = protocol.PortTable{GUID: guid, Source: "smp", Readable: true, Keys: slices.Clone(held.hca)}
			link.Switch = protocol.PortTable{GUID: at.SwitchGUID, Source: "smp", Readable: true, Keys: slices.Clone(held.sw)}
		}
	}
	return link
}

// MayAskPaths reports whether the administrator tells.
func (s *Server) MayAskPaths(context.Context) bool { return !s.options.Stranger }

// HasPath is what the subnet administrator says.
func (s *Server) HasPath(_ context.Context, from, to protocol.GUID) protocol.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Stranger {
		return protocol.False
	}
	for _, a := range s.keysOf(from) {
		for _, b := range s.keysOf(to) {
			if a != 0 && a.Base() == b.Base() && (a.Full() || b.Full()) {
				return protocol.True
			}
		}
	}
	return protocol.False
}

func (s *Server) keysOf(guid protocol.GUID) []protocol.PKey {
	if guid == ManagerPort {
		return []protocol.PKey{protocol.DefaultFull}
	}
	return s.tables[guid].hca
}
