package sim

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/protocol"
)

// view is a GPU as a tenant sees it: numbered from 0 among those of the lease.
type view struct {
	protocol.GPU

	index  int
	share  node.Share
	meters map[string]float64
}

// views lists the lease's GPUs that are there.
func (k *call) views() []view {
	devices, err := k.box.gpus.Devices(k.ctx)
	if err != nil {
		return nil
	}
	meters := map[string]map[string]float64{}
	if samples, err := k.box.gpus.Samples(k.ctx); err == nil {
		for _, s := range samples {
			meters[s.Device] = s.Values
		}
	}
	var views []view
	for _, g := range devices {
		at := slices.IndexFunc(k.lease.GPUs, func(s node.Share) bool { return s.UUID == g.UUID })
		if at >= 0 {
			views = append(views, view{GPU: g, index: len(views), share: k.lease.GPUs[at], meters: meters[g.UUID]})
		}
	}
	return views
}

func (k *call) vendor() string { return k.box.inventory.GPUs[0].Vendor }

func (k *call) nvidiaSMI() int {
	if k.vendor() != "nvidia" {
		fmt.Fprintln(k.errs, "nvidia-smi: command not found")
		return statusNotFound
	}
	if slices.Contains(k.args, "-L") || slices.Contains(k.args, "--list-gpus") {
		return k.listGPUs()
	}
	line := "+" + strings.Repeat("-", 77) + "+\n"
	fmt.Fprintf(k.out, "%s| %-75s |\n%s", line, "NVIDIA-SMI (simulated)      Driver Version: "+k.box.gpus.Version(), line)
	fmt.Fprintf(k.out, "| %-3s %-24s %-16s %5s %11s %11s |\n%s", "GPU", "Name", "Bus-Id", "Temp", "Pwr:Usage", "Memory MiB", line)
	for _, v := range k.views() {
		fmt.Fprintf(k.out, "| %3d %-24s %-16s %4.0fC %10.0fW %11.0f |\n", v.index, v.Model, strings.ToUpper(v.PCIAddress),
			v.meters["gpu_temperature_celsius"], v.meters["gpu_power_watts"], v.meters["gpu_memory_used_bytes"]/mib)
		fmt.Fprintf(k.out, "| %76s|\n", fmt.Sprintf("GPU-Util %.0f%% ", v.meters["gpu_utilization_percent"]))
	}
	fmt.Fprint(k.out, line)
	return 0
}

// listGPUs lists GPUs, and under each the lease's own MIG instance.
func (k *call) listGPUs() int {
	for _, v := range k.views() {
		fmt.Fprintf(k.out, "GPU %d: %s (UUID: %s)\n", v.index, v.Model, v.UUID)
		instances, err := k.box.gpus.Instances(k.ctx, v.UUID)
		if err != nil {
			continue
		}
		for _, i := range instances {
			if i.Start >= v.share.Slices.From && i.Start < v.share.Slices.To {
				fmt.Fprintf(k.out, "  MIG %-12s Device  0: (UUID: %s)\n", i.Profile, i.UUID)
			}
		}
	}
	return 0
}

func (k *call) rocmSMI() int {
	if k.vendor() != "amd" {
		fmt.Fprintln(k.errs, "rocm-smi: command not found")
		return statusNotFound
	}
	for _, v := range k.views() {
		fmt.Fprintf(k.out, "GPU[%d]: %s, UUID %s, %.0fC, %.0fW, GPU use %.0f%%\n", v.index, v.Model, v.UUID,
			v.meters["gpu_temperature_celsius"], v.meters["gpu_power_watts"], v.meters["gpu_utilization_percent"])
	}
	return 0
}

// adapters lists the adapters with a port of the lease.
func (k *call) adapters() []protocol.HCA {
	hcas, err := k.box.ports.Inventory(k.ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(hcas, func(h protocol.HCA) bool {
		return !slices.ContainsFunc(h.Ports, func(p protocol.HCAPort) bool { return slices.Contains(k.lease.Ports, p.GUID) })
	})
}

func (k *call) ibstat() int {
	for _, hca := range k.adapters() {
		fmt.Fprintf(k.out, "CA '%s'\n\tCA type: MT4129\n\tNumber of ports: %d\n\tFirmware version: %s\n\tNode GUID: %v\n", hca.Device, len(hca.Ports), hca.Firmware, hca.NodeGUID)
		for _, p := range hca.Ports {
			fmt.Fprintf(k.out, "\tPort %d:\n\t\tState: %s\n\t\tPhysical state: %s\n\t\tRate: %d\n\t\tBase lid: %d\n\t\tSM lid: %d\n\t\tPort GUID: %v\n\t\tLink layer: %s\n",
				p.Number, state(p.State), p.PhysicalState, p.RateGbps, p.LID, p.SMLID, p.GUID, p.LinkLayer)
		}
	}
	return 0
}

// state writes ACTIVE as ibstat does.
func state(s string) string {
	if s == "" {
		return s
	}
	return s[:1] + strings.ToLower(s[1:])
}

// pkeys shows each port's P_Key table on a line.
func (k *call) pkeys() int {
	for _, hca := range k.adapters() {
		for _, p := range hca.Ports {
			table, err := k.box.ports.PKeys(k.ctx, p.GUID)
			if err != nil || !table.Readable {
				fmt.Fprintf(k.out, "%s/%d %v: unreadable: %s\n", hca.Device, p.Number, p.GUID, table.Detail)
				continue
			}
			var keys []string
			for _, key := range table.Keys {
				keys = append(keys, key.String())
			}
			fmt.Fprintf(k.out, "%s/%d %v: %s\n", hca.Device, p.Number, p.GUID, strings.Join(keys, " "))
		}
	}
	return 0
}

// sysfs answers for /sys/class/infiniband/*/ports/*/pkeys/*, as far as the lease has such ports, in the kernel's form.
func (k *call) sysfs(pattern string) (string, bool) {
	const root = "/sys/class/infiniband/"
	if !strings.HasPrefix(pattern, root) {
		return "", false
	}
	var out strings.Builder
	for _, hca := range k.adapters() {
		for _, p := range hca.Ports {
			table, err := k.box.ports.PKeys(k.ctx, p.GUID)
			if err != nil {
				continue
			}
			for index := range max(len(table.Keys), 1) {
				name := root + hca.Device + "/ports/" + strconv.Itoa(p.Number) + "/pkeys/" + strconv.Itoa(index)
				if matched, err := path.Match(pattern, name); err != nil || !matched {
					continue
				}
				var key protocol.PKey
				if index < len(table.Keys) {
					key = table.Keys[index]
				}
				out.WriteString(key.String() + "\n")
			}
		}
	}
	return out.String(), out.Len() > 0
}
