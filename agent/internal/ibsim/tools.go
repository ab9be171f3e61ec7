package ibsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Tools are the programs that a private subnet needs.
type Tools struct {
	OpenSM    string
	Simulator string
	Preload   string // umad2sim: the library that connects OpenSM and infiniband-diags to the simulator

	prefixes    []string // where to look besides the system's directories
	libraryDirs []string // for programs that were unpacked into a directory instead of installed
}

// ErrNoTools means that a program is not there. On Debian: opensm, ibsim-utils, infiniband-diags.
var ErrNoTools = errors.New("not installed")

// FindTools looks on PATH, where Debian puts them, and below the prefix directories, each a file system root into which the
// packages were unpacked ("dpkg -x").
func FindTools(prefixes ...string) (Tools, error) {
	opensm, err := findProgram("opensm", prefixes)
	if err != nil {
		return Tools{}, err
	}
	simulator, err := findProgram("ibsim", prefixes)
	if err != nil {
		return Tools{}, err
	}
	preload, err := findPreload(prefixes)
	if err != nil {
		return Tools{}, err
	}
	return Tools{
		OpenSM: opensm, Simulator: simulator, Preload: preload, prefixes: prefixes, libraryDirs: librariesOf(prefixes),
	}, nil
}

// librariesOf lists where unpacked packages keep their libraries.
func librariesOf(prefixes []string) []string {
	var dirs []string
	for _, root := range prefixes {
		for _, pattern := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
			found, err := filepath.Glob(filepath.Join(root, pattern))
			if err == nil {
				dirs = append(dirs, found...)
			}
		}
	}
	return dirs
}

func findProgram(name string, prefixes []string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, root := range slices.Concat([]string{"/"}, prefixes) {
		for _, dir := range []string{"usr/sbin", "usr/bin", "sbin", "bin"} {
			candidate := filepath.Join(root, dir, name)
			if found, err := exec.LookPath(candidate); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("find %s: %w", name, ErrNoTools)
}

// findPreload finds the library that stands in for the kernel's MAD devices.
func findPreload(prefixes []string) (string, error) {
	for _, root := range slices.Concat([]string{"/"}, prefixes) {
		for _, pattern := range []string{"usr/lib/*/umad2sim/libumad2sim.so", "usr/lib*/umad2sim/libumad2sim.so"} {
			found, err := filepath.Glob(filepath.Join(root, pattern))
			if err == nil && len(found) > 0 && isFile(found[0]) {
				return found[0], nil
			}
		}
	}
	return "", fmt.Errorf("find libumad2sim.so: %w", ErrNoTools)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// environment is what a program needs that shall speak to the simulator as the named node.
func (t Tools) environment(base, node string) []string {
	return append(t.libraries(), "IBSIM_SOCKNAME="+base, "SIM_HOST="+node, "LD_PRELOAD="+t.Preload)
}

// libraries is the environment in which unpacked programs find their libraries.
func (t Tools) libraries() []string {
	if len(t.libraryDirs) == 0 {
		return os.Environ()
	}
	dirs := slices.Concat(t.libraryDirs, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")))
	return append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(dirs, string(filepath.ListSeparator)))
}

// Version asks OpenSM what it is, e.g. "OpenSM 3.3.23".
func (t Tools) Version(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, t.OpenSM, "--version") //nolint:gosec // the tool that the caller chose
	cmd.Env = t.libraries()
	out, err := cmd.CombinedOutput() // it ends with a status of 1
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "OpenSM ") {
			return line, nil
		}
	}
	return "", fmt.Errorf("ask OpenSM for its version: %w", cmp.Or(err, errors.New("it does not say")))
}
