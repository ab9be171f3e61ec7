package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/durable"
)

const (
	// uidsPerPlace is how many users a place has: as many as every distribution's images expect.
	uidsPerPlace = 1 << 16
	// firstUID is where places' users begin. systemd's containers and useradd's subordinate users end below.
	firstUID = 0x7000_0000
	// lastUID is the last that programs which take users for signed numbers understand.
	lastUID = 0x7fff_ffff
)

// users is a driver's range of users: those of its places, slot by slot. Ending a place ends every process of its users, so no two drivers of a machine
// may have any in common.
type users struct {
	Dir   string `json:"dir"` // whose they are
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

func (u users) overlaps(o users) bool { return u.First < o.First+o.Count && o.First < u.First+u.Count }

// claimUsers returns the driver's range: the one that it had before, since files are owned by it, or the first that is free. What is claimed is
// known beside run, as long as the machine runs.
func claimUsers(run, dir string, slots int) (users, error) {
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(run), ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return users{}, fmt.Errorf("claim users: %w", err)
	}
	defer lock.Close() //nolint:errcheck // the lock goes with it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return users{}, fmt.Errorf("claim users: %w", err)
	}
	others, err := claimed(run, dir)
	if err != nil {
		return users{}, err
	}
	kept := filepath.Join(dir, "users.json")
	mine := users{Dir: dir, First: firstUID, Count: uint32(slots) * uidsPerPlace} //nolint:gosec // slots are few
	had, err := durable.ReadJSON(kept, &mine)
	if err != nil {
		return users{}, fmt.Errorf("claim users: %w", err)
	}
	if had && mine.Count < uint32(slots)*uidsPerPlace { //nolint:gosec // slots are few
		return users{}, fmt.Errorf("claim users: %d are kept for %s, too few for %d slots", mine.Count, dir, slots)
	}
	if mine, err = fit(mine, others, had); err != nil {
		return users{}, err
	}
	return mine, errors.Join(durable.WriteJSON(kept, mine, 0o600), durable.WriteJSON(filepath.Join(run, "users.json"), mine, 0o600))
}

// fit moves a range behind those that are in its way, unless it is fixed.
func fit(mine users, others []users, fixed bool) (users, error) {
	for moved := true; moved; {
		moved = false
		for _, other := range others {
			if !mine.overlaps(other) {
				continue
			}
			if fixed {
				return mine, fmt.Errorf("claim users: those of %s are also claimed for %s", mine.Dir, other.Dir)
			}
			mine.First, moved = other.First+other.Count, true
		}
	}
	if mine.First < firstUID || mine.First+mine.Count-1 > lastUID {
		return mine, errors.New("claim users: none are left on this machine")
	}
	return mine, nil
}

// claimed lists the other drivers' ranges on this machine. One whose directory is gone has no files and no places.
func claimed(run, dir string) ([]users, error) {
	entries, err := filepath.Glob(filepath.Join(filepath.Dir(run), "*", "users.json"))
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	var others []users
	for _, path := range entries {
		var other users
		if _, err := durable.ReadJSON(path, &other); err != nil {
			return nil, fmt.Errorf("list users: %w", err)
		}
		_, err := os.Stat(other.Dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case other.Dir == dir:
		case filepath.Dir(path) == run:
			return nil, fmt.Errorf("containers of that name are those of %s", other.Dir)
		default:
			others = append(others, other)
		}
	}
	return others, nil
}
