package ufm

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// SourceSMP names tables that the ports themselves told.
const SourceSMP = "smp"

// readers bounds how many ports are read at once.
const readers = 8

// SMPReader implements PortReader with directed-route SMPs from a host on the fabric, over /dev/infiniband/umad* (not tried on
// hardware) or a simulator.
type SMPReader struct {
	client *smp.Client

	mu     sync.Mutex
	subnet smp.Subnet // as of the last walk
}

// NewSMPReader returns a reader. It does not close the client.
func NewSMPReader(client *smp.Client) *SMPReader { return &SMPReader{client: client} }

// Read implements PortReader. Ports that are not where they were are looked for once.
func (r *SMPReader) Read(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	links := r.read(ctx, ports)
	if slices.ContainsFunc(links, func(l protocol.LinkState) bool { return !l.HCA.Readable || !l.Switch.Readable }) {
		subnet, err := r.client.Walk(ctx)
		if err != nil {
			return nil, fmt.Errorf("read ports: %w", err)
		}
		r.mu.Lock()
		r.subnet = subnet
		r.mu.Unlock()
		links = r.read(ctx, ports)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read ports: %w", err)
	}
	return links, nil
}

func (r *SMPReader) read(ctx context.Context, ports []protocol.GUID) []protocol.LinkState {
	r.mu.Lock()
	subnet := r.subnet
	r.mu.Unlock()
	links := make([]protocol.LinkState, len(ports))
	var group errgroup.Group
	group.SetLimit(readers)
	for i, guid := range ports {
		group.Go(func() error {
			links[i] = r.readLink(ctx, subnet, guid)
			return nil
		})
	}
	_ = group.Wait() // the readers do not fail: what cannot be read is unknown
	return links
}

func (r *SMPReader) readLink(ctx context.Context, subnet smp.Subnet, guid protocol.GUID) protocol.LinkState {
	place, found := subnet.Places[guid]
	link := protocol.LinkState{
		GUID: guid, SwitchGUID: place.SwitchGUID, SwitchPort: place.SwitchPort,
		HCA:    protocol.PortTable{GUID: guid, Source: SourceSMP},
		Switch: protocol.PortTable{GUID: place.SwitchGUID, Source: SourceSMP},
	}
	if !found {
		link.HCA.Detail, link.Switch.Detail = "does not answer", "not known where it hangs"
		return link
	}
	fill(&link.HCA, func() ([]protocol.PKey, error) { return r.readHCA(ctx, place) })
	fill(&link.Switch, func() ([]protocol.PKey, error) { return r.readSwitch(ctx, place, subnet.Routes[place.SwitchGUID]) })
	return link
}

func fill(table *protocol.PortTable, read func() ([]protocol.PKey, error)) {
	keys, err := read()
	if err != nil {
		table.Detail = err.Error()
		return
	}
	table.Keys, table.Readable = keys, true
}

// readHCA reads the adapter's end. Who answers is asked first: after recabling, another port may.
func (r *SMPReader) readHCA(ctx context.Context, place smp.Place) ([]protocol.PKey, error) {
	info, err := r.client.NodeInfo(ctx, place.Path)
	if err != nil {
		return nil, err
	}
	if info.PortGUID != place.GUID {
		return nil, fmt.Errorf("port %v answers in its place", info.PortGUID)
	}
	return r.client.PKeyTable(ctx, place.Path, 0, info.PKeyCap)
}

// readSwitch reads the end that faces the adapter.
func (r *SMPReader) readSwitch(ctx context.Context, place smp.Place, route smp.Route) ([]protocol.PKey, error) {
	if place.SwitchGUID == 0 || route.PKeyCap == 0 {
		return nil, fmt.Errorf("the switch has no partition tables")
	}
	info, err := r.client.NodeInfo(ctx, route.Path)
	if err != nil {
		return nil, err
	}
	if info.GUID != place.SwitchGUID {
		return nil, fmt.Errorf("%v answers in the switch's place", info.GUID)
	}
	return r.client.PKeyTable(ctx, route.Path, place.SwitchPort, route.PKeyCap)
}

// MayAskPaths implements PortReader: while the local port is a full member of the default partition, as the manager's own is.
func (r *SMPReader) MayAskPaths(ctx context.Context) bool {
	info, err := r.client.NodeInfo(ctx, nil)
	if err != nil {
		return false
	}
	keys, err := r.client.PKeyTable(ctx, nil, 0, info.PKeyCap)
	return err == nil && slices.Contains(keys, protocol.DefaultFull)
}

// HasPath implements PortReader: the word of the subnet manager's administrator, wherever it is now.
func (r *SMPReader) HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict {
	info, err := r.client.PortInfo(ctx, nil, 0)
	if err != nil || info.SMLID == 0 {
		return protocol.Unknown
	}
	found, err := r.client.HasPath(ctx, info.SMLID, from, to)
	switch {
	case err != nil:
		return protocol.Unknown
	case found:
		return protocol.True
	default:
		return protocol.False
	}
}
