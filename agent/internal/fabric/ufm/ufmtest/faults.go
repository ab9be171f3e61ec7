package ufmtest

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Faults are ways in which the server misbehaves until they are taken away. The zero value is a good server.
type Faults struct {
	Unreachable bool // connections are cut before an answer
	Silent      bool // takes calls and does not answer
	Delay       time.Duration
	Status      int  // answers everything with this
	HTML        bool // answers everything with a login page and 200
	Redirect    bool // sends everybody to a login page
	Refuse      bool // refuses credentials
	Nothing     bool // answers reads with {}, as if nothing existed
	Truncated   bool // cuts answers short
	Endless     bool // answers without end
	Stale       bool // reads tell what was when the fault began
	Cached      bool // reads come from a cache on the way
	OldDate     bool // reads are dated before the last write
	HalfAnswers bool // lists leave out every second entry
	// HidePartitions leaves out those that have no member outside of the list.
	HidePartitions []protocol.PKey
	OtherFabric    bool // lists other ports
	IgnoreWrites   bool // says yes and does nothing
	HalfWrites     bool // does every second member of a write
	LoseAnswers    bool // does the write and cuts the connection
	RefuseWrites   bool // answers writes with 400
	NoIndex0       bool // does not put keys at index 0
	HCAOnly        bool // leaves switch ports as they were
}

// state is what a stale server goes on telling.
type state struct {
	partitions map[protocol.PKey]*partition
	cut        map[protocol.GUID]bool
	everybody  string
}

// Inject replaces the faults.
func (s *Server) Inject(faults Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if faults.Stale && s.frozen == nil {
		s.frozen = &state{partitions: s.copied(), cut: maps.Clone(s.cut), everybody: s.everybody}
	}
	if !faults.Stale {
		s.frozen = nil
	}
	if s.quiet != nil {
		close(s.quiet) // those who wait are answered
		s.quiet = nil
	}
	if faults.Silent {
		s.quiet = make(chan struct{})
	}
	s.faults = faults
	s.sweep()
}

func (s *Server) copied() map[protocol.PKey]*partition {
	all := map[protocol.PKey]*partition{}
	for key, p := range s.partitions {
		all[key] = &partition{ipOverIB: p.ipOverIB, members: maps.Clone(p.members)}
	}
	return all
}

// told is what reads tell of.
func (s *Server) told() state {
	if s.frozen != nil {
		return *s.frozen
	}
	return state{partitions: s.partitions, cut: s.cut, everybody: s.everybody}
}

// every second entry is left out.
func half[T any](list []T, on bool) []T {
	if !on {
		return list
	}
	kept := list[:0:0]
	for i, entry := range list {
		if i%2 == 0 {
			kept = append(kept, entry)
		}
	}
	return kept
}

// release is a version's first two numbers.
type release struct{ major, minor int }

func parseRelease(text string) release {
	parts := strings.Split(text, ".")
	var r release
	if len(parts) >= 2 {
		r.major, _ = strconv.Atoi(parts[0])
		r.minor, _ = strconv.Atoi(parts[1])
	}
	return r
}

func (r release) atLeast(major, minor int) bool {
	return r.major > major || r.major == major && r.minor >= minor
}

// spoil answers in place of the server, and reports whether it did.
func (f Faults) spoil(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case f.Unreachable:
		hangUp(w)
	case f.Status != 0:
		http.Error(w, "trouble", f.Status)
	case f.HTML:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<!DOCTYPE html><html><title>Login</title></html>"))
	case f.Redirect:
		http.Redirect(w, r, "/login", http.StatusFound)
	case f.Refuse:
		http.Error(w, "no", http.StatusUnauthorized)
	default:
		return false
	}
	return true
}

// hangUp cuts the connection.
func hangUp(w http.ResponseWriter) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = connection.Close()
	}
}

func (f Faults) hidden(key protocol.PKey) bool { return slices.Contains(f.HidePartitions, key) }
