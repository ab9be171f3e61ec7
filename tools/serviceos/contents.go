package main

import (
	_ "embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

//go:embed init.sh
var initScript []byte

//go:embed lease.sh
var leaseScript []byte

// applets are the names under which busybox is needed.
func applets() []string {
	return []string{"sh", "mount", "mkdir", "insmod", "ip", "udhcpc", "sleep", "cat", "ls", "echo", "poweroff", "reboot", "hostname", "ln", "dmesg", "route", "ifconfig"}
}

// contents lists the archive's files.
func contents(o options, version string) ([]file, error) {
	files := []file{
		{name: "init", mode: typeRegular | 0o755, data: initScript},
		{name: "etc/udhcpc.script", mode: typeRegular | 0o755, data: leaseScript},
		{name: "dev/console", mode: typeChar | 0o600, dev: [2]uint32{5, 1}},
	}
	for _, dir := range []string{"bin", "dev", "etc", "lib", "lib/modules", "proc", "run", "sys", "tmp"} {
		files = append(files, file{name: dir, mode: typeDir | 0o755})
	}
	for name, from := range map[string]string{"bin/busybox": o.busybox, "bin/leasehold-agent": o.agent} {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path.Base(name), err)
		}
		files = append(files, file{name: name, mode: typeRegular | 0o755, data: data})
	}
	for _, name := range applets() {
		files = append(files, file{name: "bin/" + name, mode: typeLink | 0o777, data: []byte("busybox")})
	}
	if o.ca != "" {
		data, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("read authority: %w", err)
		}
		files = append(files, file{name: "etc/leasehold-ca.pem", mode: typeRegular | 0o644, data: data})
	}
	modules, err := modulesOf(o, version)
	return append(files, modules...), err
}

// modulesOf returns the modules' files, and a list of them in the order in which they can be loaded.
func modulesOf(o options, version string) ([]file, error) {
	there, err := indexModules(filepath.Join(o.kernelRoot, "lib/modules", version))
	if err != nil {
		return nil, err
	}
	order, err := there.loadOrder(o.modules)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, name := range order {
		data, err := os.ReadFile(there[name])
		if err != nil {
			return nil, fmt.Errorf("read module %s: %w", name, err)
		}
		files = append(files, file{name: "lib/modules/" + name + ".ko", mode: typeRegular | 0o644, data: data})
	}
	list := strings.Join(order, "\n") + "\n"
	return append(files, file{name: "lib/modules/order", mode: typeRegular | 0o644, data: []byte(list)}), nil
}
