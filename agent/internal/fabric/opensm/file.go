package opensm

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// file is a partitions.conf in the strict form that this package writes and reads. OpenSM accepts far more, some of it with
// another meaning than the writer's, and opens the fabric on what it cannot read; so nothing else is ever put in its place.
//
// The default partition is not in it: it is always there and always the same.
type file struct {
	// Header is set in files that this package wrote.
	Header     *header
	Partitions []partition // sorted by key
}

// header is a comment that ties the file to the control plane's order, so that both change in one rename.
type header struct {
	Epoch   int64
	Managed fabric.Range
}

// partition is one definition.
type partition struct {
	Name    string
	PKey    protocol.PKey
	Index0  bool
	IPoIB   bool
	Members []member // sorted by GUID
}

// member is one port of a partition.
type member struct {
	GUID protocol.GUID
	Full bool
}

const (
	notice        = "# Written by leasehold-agent. OpenSM opens the whole fabric on an error in this file: do not edit it.\n"
	headerPrefix  = "# leasehold:"
	defaultName   = "Default"
	defaultRule   = "Default=0x7fff : ALL=limited, ALL_SWITCHES=full, SELF=full;\n"
	maxLine       = 4095 // OpenSM reads lines into a buffer of 4,096 bytes and takes the rest for another line
	membersIndent = "    "
)

// text writes the file down. There is one GUID on each line, so that no line comes near OpenSM's limit however many members a
// partition has.
func (f file) text() []byte {
	var out bytes.Buffer
	out.WriteString(notice)
	if h := f.Header; h != nil {
		fmt.Fprintf(&out, "%s epoch=%d managed=%v-%v", headerPrefix, h.Epoch, h.Managed.Low, h.Managed.High)
		for i, key := range h.Managed.Reserved {
			fmt.Fprintf(&out, "%s%v", [...]string{" reserved=", ","}[min(i, 1)], key)
		}
		out.WriteByte('\n')
	}
	out.WriteString(defaultRule)
	for _, p := range f.Partitions {
		p.write(&out)
	}
	return out.Bytes()
}

func (p partition) write(out *bytes.Buffer) {
	fmt.Fprintf(out, "%s=%v", p.Name, p.PKey)
	if p.Index0 {
		out.WriteString(", indx0")
	}
	if p.IPoIB {
		out.WriteString(", ipoib")
	}
	out.WriteString(" :\n")
	for i, m := range p.Members {
		end := ","
		if i == len(p.Members)-1 {
			end = ";"
		}
		fmt.Fprintf(out, "%s%v=%s%s\n", membersIndent, m.GUID, m.word(), end)
	}
}

func (m member) word() string {
	if m.Full {
		return "full"
	}
	return "limited"
}

// normal returns the file in its one written order, without empty definitions, so that equal files have equal text.
func (f file) normal() file {
	partitions := make([]partition, 0, len(f.Partitions))
	for _, p := range f.Partitions {
		if len(p.Members) == 0 {
			continue
		}
		p.Members = slices.SortedFunc(slices.Values(p.Members), func(a, b member) int { return cmp.Compare(a.GUID, b.GUID) })
		partitions = append(partitions, p)
	}
	slices.SortStableFunc(partitions, func(a, b partition) int { return cmp.Compare(a.PKey, b.PKey) })
	return file{Header: f.Header, Partitions: partitions}
}

// state is what the file says in the contract's words.
func (f file) state() fabric.State {
	if f.Header == nil {
		return fabric.State{}
	}
	return fabric.State{Epoch: f.Header.Epoch, Desired: fabric.Desired{Managed: f.Header.Managed, Partitions: f.within(f.Header.Managed)}}
}

// within returns the definitions in the range as the contract has them.
func (f file) within(managed fabric.Range) []protocol.Partition {
	partitions := make([]protocol.Partition, 0, len(f.Partitions))
	for _, p := range f.Partitions {
		if !managed.Contains(p.PKey) || p.Name == probeName {
			continue
		}
		members := make([]protocol.GUID, len(p.Members))
		for i, m := range p.Members {
			members[i] = m.GUID
		}
		partitions = append(partitions, protocol.Partition{PKey: p.PKey, Name: p.Name, Members: members})
	}
	return partitions
}

// with returns the file with another desired set. Definitions outside both the old and the new managed range are somebody
// else's and stay.
func (f file) with(desired fabric.Desired, epoch int64) file {
	next := file{Header: &header{Epoch: epoch, Managed: desired.Managed}, Partitions: f.foreign(desired.Managed)}
	for _, p := range desired.Partitions {
		members := make([]member, len(p.Members))
		for i, guid := range p.Members {
			members[i] = member{GUID: guid, Full: true}
		}
		next.Partitions = append(next.Partitions, partition{Name: p.Name, PKey: p.PKey, Index0: true, Members: members})
	}
	return next.normal()
}

func (f file) foreign(managed fabric.Range) []partition {
	var foreign []partition
	for _, p := range f.Partitions {
		ours := f.Header != nil && f.Header.Managed.Contains(p.PKey) || p.Name == probeName
		if !ours && !managed.Contains(p.PKey) {
			foreign = append(foreign, p)
		}
	}
	return foreign
}
