package container

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/backoff"
)

// cgroupMounts lists where hierarchies are mounted: one of version 2, or one for each controller of version 1, or both.
func cgroupMounts() ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	var mounts []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		before, after, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if found && strings.HasPrefix(after, "cgroup") && len(fields) > 4 {
			mounts = append(mounts, fields[4])
		}
	}
	if len(mounts) == 0 {
		return nil, errors.New("find control groups: none are mounted")
	}
	return mounts, nil
}

// groupsOf lists the directories of a control group and those below it that exist, deepest first.
func groupsOf(path string) ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, mount := range mounts {
		err := filepath.WalkDir(filepath.Join(mount, path), func(dir string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) })
	return dirs, nil
}

// processesIn lists the processes in a control group and those below it.
func processesIn(path string) ([]int, error) {
	dirs, err := groupsOf(path)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // it went away meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		for word := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// processesAs lists the processes that run, or could run again, as one of a range of users, whatever control group they are in.
func processesAs(first, count uint32) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err != nil {
			continue // it ended meanwhile
		}
		if runsAs(string(data), first, count) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// runsAs reads the four user ids of a process's status. A process that has ended and only waits to be asked for is none.
func runsAs(text string, first, count uint32) bool {
	mine := false
	for line := range strings.Lines(text) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "State":
			if strings.HasPrefix(strings.TrimSpace(value), "Z") {
				return false
			}
		case "Uid":
			for word := range strings.FieldsSeq(value) {
				if uid, err := strconv.ParseUint(word, 10, 32); err == nil && uint32(uid) >= first && uint32(uid)-first < count {
					mine = true
				}
			}
		}
	}
	return mine
}

// killWithin bounds how long ended processes may take to be gone: one may be in the middle of a disk's or a GPU's work.
const killWithin = 20 * time.Second

// killAll ends the processes that list returns, until it returns none.
func killAll(ctx context.Context, list func() ([]int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	for {
		pids, err := list()
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := kill(pids, list); err != nil {
			return err
		}
		if err := backoff.Wait(ctx, 10*time.Millisecond, nil); err != nil {
			return fmt.Errorf("%d processes do not end: %w", len(pids), err)
		}
	}
}

// kill ends processes by handles that a number given out again cannot mislead: what is still listed once the handle is held is what the
// handle is of.
func kill(pids []int, list func() ([]int, error)) error {
	handles := map[int]int{}
	defer func() {
		for _, handle := range handles {
			_ = unix.Close(handle) //nolint:errcheck // nothing hangs on it
		}
	}()
	for _, pid := range pids {
		if handle, err := unix.PidfdOpen(pid, 0); err == nil { // else it has ended
			handles[pid] = handle
		}
	}
	still, err := list()
	if err != nil {
		return err
	}
	for _, pid := range still {
		if handle, held := handles[pid]; held {
			if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// removeGroups removes an empty control group.
func removeGroups(path string) error {
	dirs, err := groupsOf(path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove control group: %w", err)
		}
	}
	return nil
}
