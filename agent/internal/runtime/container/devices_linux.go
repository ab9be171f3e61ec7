package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/leasehold/leasehold/agent/internal/node"
)

// ErrNoDevice says that the host has no description of a device that the lease is to have.
var ErrNoDevice = errors.New("no CDI device")

// devicesOf names the tenancy's GPUs as the Container Device Interface's specifications on this host do: by vendor and UUID, a MIG
// instance by its own.
func (d *Driver) devicesOf(ctx context.Context, t node.Tenancy) ([]string, error) {
	kind := map[string]string{"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
	vendors := map[string]string{}
	if len(t.GPUs) > 0 {
		devices, err := d.cfg.GPU.Devices(ctx)
		if err != nil {
			return nil, fmt.Errorf("list GPUs: %w", err)
		}
		for _, g := range devices {
			vendors[g.UUID] = g.Vendor
		}
	}
	var names []string
	for _, share := range t.GPUs {
		class, known := kind[vendors[share.UUID]]
		switch {
		case !known:
			return nil, fmt.Errorf("GPU %s is not there, or of vendor %q: %w", share.UUID, vendors[share.UUID], ErrNoDevice)
		case share.Instance != "":
			names = append(names, class+"="+share.Instance)
		case share.Slices.To-share.Slices.From != wholeGPU:
			return nil, fmt.Errorf("a part of GPU %s without a MIG instance cannot be given to a container: %w", share.UUID, ErrNoDevice)
		default:
			names = append(names, class+"="+share.UUID)
		}
	}
	return names, nil
}

// refreshCDI has the vendor's tool describe the devices that there are now: a MIG instance that was just made is in no older description.
func (d *Driver) refreshCDI(ctx context.Context) error {
	if len(d.cfg.CDIRefresh) == 0 {
		return nil
	}
	out, err := exec.CommandContext(ctx, d.cfg.CDIRefresh[0], d.cfg.CDIRefresh[1:]...).CombinedOutput() //nolint:gosec // the operator's command
	if err != nil {
		return fmt.Errorf("describe devices: %s: %w: %s", filepath.Base(d.cfg.CDIRefresh[0]), err, firstLine(string(out)))
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// devices gives the container its GPUs and adapters, and nothing else that the host has.
func (d *Driver) devices(spec *specs.Spec, p place) error {
	hostPaths := map[string]string{}
	if len(p.Devices) > 0 {
		cache, err := cdi.NewCache(cdi.WithSpecDirs(d.cfg.CDIDirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("read CDI specifications: %w", err)
		}
		unknown, err := cache.InjectDevices(spec, p.Devices...)
		if len(unknown) > 0 {
			return fmt.Errorf("%s is in no specification in %s: %w", strings.Join(unknown, ", "), strings.Join(d.cfg.CDIDirs, ", "), ErrNoDevice)
		}
		if err != nil {
			return fmt.Errorf("inject CDI devices: %w", err)
		}
		hostPaths = hostPathsOf(cache, p.Devices)
	}
	for _, path := range p.Nodes {
		if err := addNode(spec, path); err != nil {
			return err
		}
	}
	bindDevices(spec, hostPaths)
	return nil
}

// hostPathsOf finds the nodes that have another path on the host than in the container; the library keeps only the latter.
func hostPathsOf(cache *cdi.Cache, devices []string) map[string]string {
	paths := map[string]string{}
	note := func(nodes []*cdispecs.DeviceNode) {
		for _, n := range nodes {
			if n.HostPath != "" {
				paths[n.Path] = n.HostPath
			}
		}
	}
	for _, name := range devices {
		if device := cache.GetDevice(name); device != nil {
			note(device.GetSpec().ContainerEdits.DeviceNodes)
			note(device.ContainerEdits.DeviceNodes)
		}
	}
	return paths
}

// addNode gives a container a character device by the host's path.
func addNode(spec *specs.Spec, path string) error {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return fmt.Errorf("device %s: %w", path, &os.PathError{Op: "stat", Path: path, Err: err})
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%s is no character device: %w", path, ErrNoDevice)
	}
	major, minor := int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: path, Type: "c", Major: major, Minor: minor})
	spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
	return nil
}
