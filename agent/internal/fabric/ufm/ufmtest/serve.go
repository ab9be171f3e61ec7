package ufmtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// UFM's words.
const (
	full    = "full"
	limited = "limited"
)

// serve answers one call.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	faults, quiet, gate := s.faults, s.quiet, s.gate
	s.mu.Unlock()
	if quiet != nil {
		select {
		case <-quiet:
		case <-r.Context().Done():
			return
		}
	}
	if faults.Delay > 0 {
		timer := time.NewTimer(faults.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if faults.spoil(w, r) {
		return
	}
	path, allowed := s.allowed(r)
	if !allowed {
		http.Error(w, "authentication required", http.StatusUnauthorized)
		return
	}
	if r.Method != http.MethodGet && gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		s.read(w, r, path)
		return
	}
	s.change(w, r, path)
}

// allowed checks who asks, which depends on the base path, and returns the path below it.
func (s *Server) allowed(r *http.Request) (string, bool) {
	if path, found := strings.CutPrefix(r.URL.Path, "/ufmRestV3"); found {
		s.mu.Lock()
		defer s.mu.Unlock()
		return path, r.Header.Get("Authorization") == "Basic "+s.token
	}
	path, found := strings.CutPrefix(r.URL.Path, "/ufmRest")
	if !found {
		return "", false
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return path, r.TLS.PeerCertificates[0].Subject.CommonName == User
	}
	user, password, given := r.BasicAuth()
	return path, given && user == User && password == Password
}

// read answers a GET.
func (s *Server) read(w http.ResponseWriter, r *http.Request, path string) {
	if s.faults.Nothing {
		s.answer(w, map[string]any{})
		return
	}
	switch path = strings.TrimSuffix(path, "/"); {
	case path == "/app/ufm_version":
		s.answer(w, map[string]string{"ufm_release_version": s.options.Release})
	case path == "/app/smconf":
		s.answer(w, s.smconf)
	case path == "/resources/ports":
		s.answer(w, half(s.ports(), s.faults.HalfAnswers))
	case path == "/resources/links":
		s.answer(w, half(s.links(), s.faults.HalfAnswers))
	case path == "/resources/systems":
		s.answer(w, half(s.switches(), s.faults.HalfAnswers))
	case path == "/resources/pkeys":
		s.answerPartitions(w, r)
	case strings.HasPrefix(path, "/resources/pkeys/"):
		key, err := parseKey(strings.TrimPrefix(path, "/resources/pkeys/"))
		told := s.told()
		p := told.partitions[key]
		if err != nil || p == nil {
			s.answer(w, map[string]any{}) // what does not exist is nothing, with 200
			return
		}
		s.answer(w, s.partitionJSON(key, p, told.everybody))
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) answerPartitions(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("guids_data") != "true" || r.URL.Query().Has("qos_conf") {
		http.Error(w, `{"error":"guids_data=true alone"}`, http.StatusBadRequest)
		return
	}
	told := s.told()
	keys := slices.Sorted(maps.Keys(told.partitions))
	slices.Reverse(keys) // the default partition first: it is there also in half an answer
	list := map[string]any{}
	for _, key := range half(keys, s.faults.HalfAnswers) {
		if !s.faults.hidden(key) {
			list[fmt.Sprintf("%#x", uint16(key))] = s.partitionJSON(key, told.partitions[key], told.everybody)
		}
	}
	s.answer(w, list)
}

func (s *Server) partitionJSON(key protocol.PKey, p *partition, everybody string) map[string]any {
	guids := []map[string]any{}
	for _, guid := range slices.Sorted(maps.Keys(p.members)) {
		m := p.members[guid]
		guids = append(guids, map[string]any{"guid": hex(guid), "index0": m.index0, "membership": map[bool]string{true: full, false: limited}[m.full]})
	}
	out := map[string]any{"partition": fmt.Sprintf("api_pkey_%#x", uint16(key)), "ip_over_ib": p.ipOverIB, "guids": guids}
	if key == protocol.DefaultLimited {
		out["partition"] = "management"
		if s.release.atLeast(6, 19) {
			out["membership"], out["index0"] = everybody, false
		}
	}
	return out
}

// ports lists the adapters' ports, UFM's own among them.
func (s *Server) ports() []map[string]any {
	told := s.told()
	list := []map[string]any{}
	add := func(guid, node protocol.GUID, description, peer string, rate int, active bool) {
		logical, physical := "Active", "Link Up"
		if !active {
			logical, physical = "Down", "Link Down"
		}
		list = append(list, map[string]any{
			"guid": hex(guid), "name": hex(node) + "_1", "number": 1, "systemID": hex(node), "lid": len(list) + 1, "dname": "HCA-1/1",
			"system_name": description, "node_description": description, "logical_state": logical, "physical_state": physical,
			"active_width": "IB_4x", "active_speed": map[int]string{10: "SDR", 100: "EDR", 200: "HDR", 400: "NDR"}[rate], "peer": peer,
		})
	}
	add(ManagerPort, ManagerPort-1, "ufm HCA-1", "", 0, true)
	for _, at := range s.options.Topology.Ports {
		guid, node := at.GUID, at.NodeGUID
		if s.faults.OtherFabric {
			guid, node = guid^0xff<<40, node^0xff<<40
		}
		add(guid, node, at.Description, hex(at.SwitchGUID)+"_"+strconv.Itoa(at.SwitchPort), at.RateGbps, !told.cut[at.GUID])
	}
	if s.faults.OtherFabric {
		return list[1:]
	}
	return list
}

func (s *Server) links() []map[string]any {
	list := []map[string]any{}
	add := func(from protocol.GUID, fromPort int, to protocol.GUID, toPort int) {
		list = append(list, map[string]any{
			"source_guid": hex(from), "source_port": strconv.Itoa(fromPort), "destination_guid": hex(to), "destination_port": strconv.Itoa(toPort),
			"width": "IB_4x", "severity": "Info", "capabilities": []string{},
		})
	}
	for _, l := range s.options.Topology.Links {
		add(l.FromGUID, l.FromPort, l.ToGUID, l.ToPort)
	}
	for _, at := range s.options.Topology.Ports {
		if !s.told().cut[at.GUID] {
			add(at.SwitchGUID, at.SwitchPort, at.NodeGUID, 1)
		}
	}
	return list
}

func (s *Server) switches() []map[string]any {
	list := []map[string]any{}
	for _, sw := range s.options.Topology.Switches {
		ports := []string{}
		for n := range sw.Ports {
			ports = append(ports, hex(sw.GUID)+"_"+strconv.Itoa(n+1))
		}
		list = append(list, map[string]any{"guid": hex(sw.GUID), "system_name": sw.Name, "type": "switch", "ports": ports})
	}
	return list
}

// answer writes JSON, as far as the faults let it.
func (s *Server) answer(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	if s.faults.Cached {
		header.Set("Age", "30")
	}
	if s.faults.OldDate {
		header.Set("Date", time.Unix(0, 0).UTC().Format(http.TimeFormat))
	}
	switch {
	case s.faults.Endless:
		for endless := append([]byte("["), strings.Repeat("1,", 1<<15)...); ; {
			if _, err := w.Write(endless); err != nil {
				return
			}
		}
	case s.faults.Truncated:
		header.Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data[:len(data)/2])
	default:
		_, _ = w.Write(data)
	}
}

func hex(guid protocol.GUID) string { return fmt.Sprintf("%016x", uint64(guid)) }

func parseKey(text string) (protocol.PKey, error) {
	digits := strings.TrimPrefix(strings.ToLower(text), "0x")
	key, err := strconv.ParseUint(digits, 16, 15)
	if err != nil || key == 0 || digits == strings.ToLower(text) {
		return 0, fmt.Errorf("invalid pkey %q", text)
	}
	return protocol.PKey(key), nil
}
