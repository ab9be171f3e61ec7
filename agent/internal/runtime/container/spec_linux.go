package container

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// initPath is where a container finds its first process, which does nothing but collect ended ones.
const initPath = "/run/leasehold-init"

// capabilities are what a container's root may do to what is its own. Each is of the container's user namespace only: over the host, and
// over the container's own network, they give nothing.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
		"CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// specOf describes a place's container to the runtime.
func (d *Driver) specOf(p place, root, data string) (*specs.Spec, error) {
	base := d.uidOf(p)
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: p.Hostname, Root: &specs.Root{Path: root},
		Process: &specs.Process{
			Args: []string{initPath, "-P"}, Cwd: "/", NoNewPrivileges: true, Rlimits: limitsOfProcess(),
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "LANG=C.UTF-8", "LEASEHOLD_LEASE=" + p.Lease,
			},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities(), Effective: capabilities(), Permitted: capabilities()},
		},
		Mounts: mountsOf(p, data, d.cfg.Init),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
				{Type: specs.UserNamespace},
			},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: base, Size: uidsPerPlace}},
			GIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: base, Size: uidsPerPlace}},
			CgroupsPath: d.groupOf(p), Resources: resourcesOf(p.Limits), RootfsPropagation: "private",
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
				"/proc/timer_stats", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/class/dmi", "/sys/devices/virtual/dmi",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if err := d.devices(spec, p); err != nil {
		return nil, err
	}
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("make system call filter: %w", err)
	}
	spec.Linux.Seccomp = profile
	return spec, nil
}

// limitsOfProcess: memory may be locked without limit, since adapters and GPUs need theirs pinned and all of it counts for the place anyway.
func limitsOfProcess() []specs.POSIXRlimit {
	files, locked := allowed(unix.RLIMIT_NOFILE, 1<<20), allowed(unix.RLIMIT_MEMLOCK, unix.RLIM_INFINITY)
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Hard: files, Soft: min(files, 1<<16)}, {Type: "RLIMIT_MEMLOCK", Hard: locked, Soft: locked}, {Type: "RLIMIT_CORE"},
	}
}

// allowed returns what is wanted of a resource, or as much as this process may give: one that itself runs in a container may not raise limits.
func allowed(resource int, want uint64) uint64 {
	var ours unix.Rlimit
	if err := unix.Getrlimit(resource, &ours); err != nil || ours.Max >= want {
		return want
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err == nil && has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return want
	}
	return ours.Max
}

func mountsOf(p place, data, first string) []specs.Mount {
	bounded := fmt.Sprintf("size=%d", p.Limits.MemoryBytes/2)
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", bounded}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", bounded}},
		{Destination: initPath, Type: "bind", Source: first, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		{Destination: "/scratch", Type: "bind", Source: data, Options: []string{"bind", "rw", "nosuid", "nodev"}},
	}
}

func resourcesOf(l Limits) *specs.LinuxResources {
	period := uint64(periodMicros)
	return &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		Memory:  &specs.LinuxMemory{Limit: &l.MemoryBytes, Swap: swapOf(l)},
		CPU:     &specs.LinuxCPU{Shares: &l.Weight, Quota: &l.QuotaMicros, Period: &period, Cpus: l.CPUs, Mems: l.Mems},
		Pids:    &specs.LinuxPids{Limit: &l.Processes},
	}
}

// swapOf says that memory and swap together are no more than memory. A kernel of version 1 that does not count swap refuses to be told.
func swapOf(l Limits) *int64 {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil
	}
	for _, mount := range mounts {
		if exists(filepath.Join(mount, "memory.memsw.limit_in_bytes")) {
			return &l.MemoryBytes
		}
		if exists(filepath.Join(mount, "memory.limit_in_bytes")) {
			return nil
		}
	}
	return &l.MemoryBytes
}

// bindDevices turns devices into mounts of the host's own nodes: in a user namespace none can be made. hostPaths says where one lies that
// has another name on the host.
func bindDevices(spec *specs.Spec, hostPaths map[string]string) {
	for _, device := range spec.Linux.Devices {
		source := device.Path
		if at := hostPaths[device.Path]; at != "" {
			source = at
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: device.Path, Type: "bind", Source: source, Options: []string{"bind", "rw", "nosuid", "noexec"}})
	}
	spec.Linux.Devices = nil
}

// withEnv returns env with more set.
func withEnv(env []string, more map[string]string) []string {
	kept := slices.DeleteFunc(slices.Clone(env), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		_, replaced := more[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(more)) {
		kept = append(kept, name+"="+more[name])
	}
	return kept
}
