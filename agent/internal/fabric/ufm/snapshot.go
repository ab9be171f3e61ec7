package ufm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// UFM's calls, below the base path.
const (
	pathVersion    = "/app/ufm_version"
	pathSMConf     = "/app/smconf"
	pathPorts      = "/resources/ports?sys_type=Computer"
	pathLinks      = "/resources/links"
	pathSwitches   = "/resources/systems?type=switch"
	pathPartitions = "/resources/pkeys?guids_data=true" // cannot be asked together with qos_conf
	pathSet        = "/resources/pkeys"
	pathRemoveOld  = "/actions/remove_guids_from_pkey" // deprecated, and all that old versions have
)

// pathPartition asks for one PKey.
func pathPartition(key protocol.PKey) string {
	return "/resources/pkeys/" + encodeKey(key) + "?guids_data=true"
}

// snapshot is what UFM says at one time. It is the manager's word: what is in the ports is another matter.
type snapshot struct {
	ports      map[protocol.GUID]port
	partitions map[protocol.PKey]partition
}

// look asks UFM for its ports and partitions and makes sure that the answer is whole and of our fabric. Any error but errFabric
// means that UFM cannot be relied on now, and that nothing is known.
func (d *Driver) look(ctx context.Context) (snapshot, error) {
	seen, err := d.ask(ctx)
	if err == nil {
		err = d.recognise(seen)
	}
	if err == nil {
		err = d.crossCheck(ctx, seen)
	}
	if err == nil {
		err = d.noteSeen(seen)
	}
	if err != nil {
		seen = snapshot{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = answer{seen: seen, err: err, at: d.config.Now()}
	return seen, err
}

// answer is what came of looking.
type answer struct {
	seen snapshot
	err  error
	at   time.Time // zero: there was none
}

// breath is how long an answer serves for cross-checks that follow it: a dozen of them would else fetch the same long lists, or
// each wait for a UFM that is silent.
const breath = 2 * time.Second

// recent is what UFM said just now, or says.
func (d *Driver) recent(ctx context.Context) (snapshot, error) {
	d.mu.Lock()
	last := d.last
	d.mu.Unlock()
	if age := d.config.Now().Sub(last.at); !last.at.IsZero() && age >= 0 && age < breath {
		return last.seen, last.err
	}
	return d.look(ctx)
}

func (d *Driver) ask(ctx context.Context) (snapshot, error) {
	var s snapshot
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		data, err := d.client.get(ctx, pathPorts)
		if err != nil {
			return err
		}
		s.ports, err = decodePorts(data)
		return err
	})
	group.Go(func() error {
		data, err := d.client.get(ctx, pathPartitions)
		if err != nil {
			return err
		}
		s.partitions, err = decodePartitions(data)
		return err
	})
	if err := group.Wait(); err != nil {
		return snapshot{}, err
	}
	return s, nil
}

// recognise tells our fabric from others by GUIDs, which are unique in the world: the manager's own port must be among those that
// UFM lists. If it is not, and none is that was ever seen here either, this is another fabric; else the list is not whole.
func (d *Driver) recognise(s snapshot) error {
	if slices.ContainsFunc(d.config.ManagerPorts, func(guid protocol.GUID) bool { _, listed := s.ports[guid]; return listed }) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for guid := range d.memory.Ports {
		if _, listed := s.ports[guid]; listed {
			return fmt.Errorf("UFM does not list its own port: %w", errPartial)
		}
	}
	if len(s.ports) == 0 {
		return fmt.Errorf("UFM lists no port at all: %w", errPartial)
	}
	return errFabric
}

// crossCheck asks for each partition that should be in the list and is not by itself: those that the set has, and those that were
// closed lately. A list that leaves out what is there would make a port look clear that is not.
func (d *Driver) crossCheck(ctx context.Context, s snapshot) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for _, key := range d.expected() {
		if _, listed := s.partitions[key]; listed {
			continue
		}
		group.Go(func() error { return d.isGone(ctx, key) })
	}
	return group.Wait()
}

func (d *Driver) expected() []protocol.PKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := slices.Clone(d.memory.Closed)
	for _, p := range d.memory.State.Desired.Partitions {
		keys = append(keys, p.PKey)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// isGone fails unless UFM has no members in the partition.
func (d *Driver) isGone(ctx context.Context, key protocol.PKey) error {
	data, err := d.client.get(ctx, pathPartition(key))
	var status *statusError
	switch {
	case errors.As(err, &status) && status.Status == http.StatusNotFound, err == nil && isNothing(data):
		return nil
	case err != nil:
		return err
	}
	p, err := decodePartition(data)
	if err != nil {
		return fmt.Errorf("decode PKey %v: %w", key, err)
	}
	if len(p.Members) > 0 {
		return fmt.Errorf("PKey %v has members and is not in the list of all: %w", key, errPartial)
	}
	return nil
}

// word is what the manager says that a port has. known is false when it does not say enough.
func (s snapshot) word(guid protocol.GUID) (keys []protocol.PKey, known bool) {
	var first, rest []protocol.PKey
	for key, p := range s.partitions {
		m, member := p.Members[guid]
		if key == protocol.DefaultLimited {
			if !member && p.Default == "" {
				return nil, false // UFM before 6.19 does not say what ports are in the default partition
			}
			rest = append(rest, withMembership(key, cmp.Or(m.Membership, p.Default)))
			continue
		}
		switch {
		case member && m.Index0:
			first = append(first, withMembership(key, m.Membership))
		case member:
			rest = append(rest, withMembership(key, m.Membership))
		}
	}
	if len(first) > 1 {
		return nil, false // which one is really there cannot be told
	}
	// Where the others are is not told: the default partition is taken to come first, so that a lease's key which is not said to
	// be at index 0 is not taken to be there.
	slices.SortFunc(rest, func(a, b protocol.PKey) int {
		return cmp.Or(cmp.Compare(b.Base(), a.Base()), cmp.Compare(a, b))
	})
	return slices.Concat(first, rest), true
}

func withMembership(key protocol.PKey, m membership) protocol.PKey {
	if m == full {
		return key | protocol.FullMember
	}
	return key
}

// foreign counts the partitions outside the managed range that a port is in, the default one not counted.
func (s snapshot) foreign(managed fabric.Range, guid protocol.GUID) int {
	count := 0
	for key, p := range s.partitions {
		if _, member := p.Members[guid]; member && key != protocol.DefaultLimited && !managed.Contains(key) {
			count++
		}
	}
	return count
}

// within lists what is in the managed range, whatever its members' membership: what a first Apply takes over.
func (s snapshot) within(managed fabric.Range) []protocol.Partition {
	var found []protocol.Partition
	for key, p := range s.partitions {
		if !managed.Contains(key) || len(p.Members) == 0 {
			continue
		}
		taken := protocol.Partition{PKey: key, Name: fmt.Sprintf("ufm-%04x", uint16(key))}
		for guid := range p.Members {
			taken.Members = append(taken.Members, guid)
		}
		slices.Sort(taken.Members)
		found = append(found, taken)
	}
	slices.SortFunc(found, func(a, b protocol.Partition) int { return cmp.Compare(a.PKey, b.PKey) })
	return found
}

// isOther reports whether the error is that this is another fabric.
func isOther(err error) bool { return errors.Is(err, errFabric) }
