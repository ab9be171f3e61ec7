package ufm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// step is one write. Exactly one of the lists is set.
type step struct {
	key    protocol.PKey
	remove []protocol.GUID // these leave
	set    []protocol.GUID // these are all the members: full, at index 0
	add    []protocol.GUID // these join, or change from limited or from another index
}

// plan lists what is to be written next so that the managed range holds the set, nothing once it does. Leaving comes first and
// alone: what joins before the other has left would connect two tenants for a moment. Nothing outside the range is ever in a plan.
func (s snapshot) plan(desired fabric.Desired, sets bool) []step {
	wanted := map[protocol.PKey][]protocol.GUID{}
	for _, p := range desired.Partitions {
		wanted[p.PKey] = p.Members
	}
	var leave, join []step
	for _, key := range slices.Sorted(maps.Keys(s.partitions)) {
		if !desired.Managed.Contains(key) || key == protocol.DefaultLimited {
			continue
		}
		if gone := without(s.partitions[key].Members, wanted[key]); len(gone) > 0 {
			leave = append(leave, step{key: key, remove: gone})
		}
	}
	if len(leave) > 0 {
		return leave
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		missing, changed := s.partitions[key].lacks(wanted[key])
		switch {
		case missing && sets:
			join = append(join, step{key: key, set: wanted[key]})
		case len(changed) > 0:
			join = append(join, step{key: key, add: changed})
		}
	}
	return join
}

// without lists the members that are not wanted, sorted.
func without(members map[protocol.GUID]entry, wanted []protocol.GUID) []protocol.GUID {
	var gone []protocol.GUID
	for guid := range members {
		if !slices.Contains(wanted, guid) {
			gone = append(gone, guid)
		}
	}
	slices.Sort(gone)
	return gone
}

// lacks lists the wanted members that are not full ones at index 0, and reports whether any is no member at all.
func (p partition) lacks(wanted []protocol.GUID) (missing bool, changed []protocol.GUID) {
	for _, guid := range wanted {
		held, member := p.Members[guid]
		if !member || held != (entry{Membership: full, Index0: true}) {
			changed = append(changed, guid)
		}
		missing = missing || !member
	}
	return missing, changed
}

// sameSteps reports whether two plans are the same.
func sameSteps(a, b []step) bool {
	return slices.EqualFunc(a, b, func(x, y step) bool {
		return x.key == y.key && slices.Equal(x.remove, y.remove) && slices.Equal(x.set, y.set) && slices.Equal(x.add, y.add)
	})
}

// perCall bounds how many GUIDs one call removes: they stand in the URL.
const perCall = 64

// membersJSON is the body of POST and PUT resources/pkeys.
type membersJSON struct {
	PKey       string     `json:"pkey"`
	GUIDs      []string   `json:"guids"`
	Index0     bool       `json:"index0"`
	IPOverIB   bool       `json:"ip_over_ib"`
	Membership membership `json:"membership"`
}

func newMembers(key protocol.PKey, guids []protocol.GUID) membersJSON {
	return membersJSON{PKey: encodeKey(key), GUIDs: encodeGUIDs(guids), Index0: true, IPOverIB: true, Membership: full}
}

// write does the steps. What comes of it is not believed but read back; the error says why it may not have worked. It goes on
// after a failure: one partition must not keep others from being closed.
func (d *Driver) write(ctx context.Context, steps []step, newer bool) error {
	d.mu.Lock()
	d.last = answer{}
	d.mu.Unlock()
	var failures []error
	for _, s := range steps {
		if err := d.writeOne(ctx, s, newer); err != nil {
			failures = append(failures, fmt.Errorf("PKey %v: %w", s.key, err))
		}
	}
	return errors.Join(failures...)
}

func (d *Driver) writeOne(ctx context.Context, s step, newer bool) error {
	switch {
	case s.set != nil:
		return d.client.put(ctx, pathSet, newMembers(s.key, s.set))
	case s.add != nil:
		return d.client.post(ctx, pathSet, newMembers(s.key, s.add))
	}
	for guids := range slices.Chunk(s.remove, perCall) {
		if err := d.removeMembers(ctx, s.key, guids, newer); err != nil {
			return err
		}
	}
	return nil
}

// removeMembers uses the form that this UFM has. One that claims to have the newer and does not is asked in the older.
func (d *Driver) removeMembers(ctx context.Context, key protocol.PKey, guids []protocol.GUID, newer bool) error {
	if newer {
		err := d.client.remove(ctx, "/resources/pkeys/"+encodeKey(key)+"/guids/"+strings.Join(encodeGUIDs(guids), ","))
		if !unsupported(err) {
			return err
		}
	}
	return d.client.post(ctx, pathRemoveOld, struct {
		PKey  string   `json:"pkey"`
		GUIDs []string `json:"guids"`
	}{encodeKey(key), encodeGUIDs(guids)})
}

// sets reports whether this UFM has PUT and DELETE below resources/pkeys.
func (d *Driver) sets(ctx context.Context) (bool, error) {
	v, err := d.version(ctx)
	return v.atLeast(setsSince.Major, setsSince.Minor), err
}

// setsSince is the oldest release whose public guide has PUT and DELETE below resources/pkeys. What is older, or does not say
// which it is, is asked in the deprecated forms.
var setsSince = version{Major: 6, Minor: 10} //nolint:gochecknoglobals // a constant that Go cannot write as one

// version asks UFM for its release once, and again only after that failed.
func (d *Driver) version(ctx context.Context) (version, error) {
	d.mu.Lock()
	known := d.release
	d.mu.Unlock()
	if known.Text != "" {
		return known, nil
	}
	data, err := d.client.get(ctx, pathVersion)
	if err != nil {
		return version{}, fmt.Errorf("ask UFM for its version: %w", err)
	}
	if known, err = decodeVersion(data); err != nil {
		return version{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.release = cmp.Or(d.release, known)
	return d.release, nil
}
