package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// modules are a kernel's, file by name.
type modules map[string]string

func indexModules(dir string) (modules, error) {
	found := modules{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			found[canonical(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list kernel modules: %w", err)
	}
	return found, nil
}

// canonical is a module's name as the kernel writes it: a dash in a file's name is an underscore elsewhere.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// loadOrder puts each module behind those that it needs.
func (m modules) loadOrder(wanted []string) ([]string, error) {
	var order []string
	var add func(name string) error
	add = func(name string) error {
		name = canonical(name)
		if name == "" || slices.Contains(order, name) {
			return nil
		}
		path, ok := m[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s", name)
		}
		needed, err := needs(path)
		if err != nil {
			return err
		}
		for _, n := range needed {
			if err := add(n); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// needs reads which modules one needs from its own description.
func needs(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open module: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New(path + " has no description")
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
