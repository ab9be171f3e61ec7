//go:build cgo

package nvidia

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/leasehold/leasehold/agent/internal/gpu"
)

// profileIDs maps a profile of our table to NVML's number for GPU and compute instances.
func profileIDs(profile string, width int) (int, int, error) {
	compute, _, _ := strings.Cut(profile, "g.")
	switch {
	case compute == "1" && width == 1:
		return nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nil
	case compute == "1": // double memory
		return nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nil
	case compute == "2":
		return nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, nil
	case compute == "3":
		return nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, nil
	case compute == "4":
		return nvml.GPU_INSTANCE_PROFILE_4_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, nil
	case compute == "7":
		return nvml.GPU_INSTANCE_PROFILE_7_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, nil
	default:
		return 0, 0, fmt.Errorf("profile %q: %w", profile, gpu.ErrPlacement)
	}
}

// Instances implements Driver.
func (n *NVML) Instances(_ context.Context, uuid string) ([]gpu.Instance, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, err := n.find(uuid)
	if err != nil {
		return nil, err
	}
	found, err := instancesOf(h)
	if err != nil {
		return nil, err
	}
	out := make([]gpu.Instance, 0, len(found))
	for _, f := range found {
		out = append(out, f.Instance)
	}
	return out, nil
}

// instance is a MIG instance with NVML's hold on it.
type instance struct {
	gpu.Instance

	nvml nvml.GpuInstance
}

// instancesOf lists what is there, also of profiles that we do not sell: they take their place all the same.
func instancesOf(h handle) ([]instance, error) {
	if !h.card.MIGEnabled {
		return nil, nil
	}
	names := map[int]string{}
	for profile, p := range gpu.PlacementsOf(h.card.Model) {
		if id, _, err := profileIDs(profile, p.Width); err == nil {
			names[id] = profile
		}
	}
	var found []instance
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := h.GetGpuInstanceProfileInfo(id)
		if ret != nvml.SUCCESS {
			continue // this card does not have the profile
		}
		handles, ret := h.GetGpuInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, failed("list MIG instances", ret)
		}
		for _, gi := range handles {
			about, ret := gi.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, failed("read MIG instance", ret)
			}
			name := names[id]
			if name == "" {
				name = fmt.Sprintf("profile-%d", id)
			}
			found = append(found, instance{nvml: gi, Instance: gpu.Instance{
				UUID: migUUID(h, about.Id), Profile: name, Start: int(about.Placement.Start), Width: int(about.Placement.Size),
			}})
		}
	}
	slices.SortFunc(found, func(a, b instance) int { return a.Start - b.Start })
	return found, nil
}

// migUUID finds the MIG device on a GPU instance; while it has no compute instance there is none.
func migUUID(h handle, gpuInstance uint32) string {
	count, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return ""
	}
	for i := range count {
		device, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if id, ret := device.GetGpuInstanceId(); ret == nvml.SUCCESS && id == int(gpuInstance) {
			return optional(device.GetUUID())
		}
	}
	return ""
}

// CreateInstance implements Driver. Our own table decides where an instance may lie, and the card must agree: one that says
// otherwise is not what was sold.
func (n *NVML) CreateInstance(_ context.Context, uuid, profile string, start int) (gpu.Instance, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, err := n.find(uuid)
	if err != nil {
		return gpu.Instance{}, err
	}
	if !h.card.MIGEnabled {
		return gpu.Instance{}, fmt.Errorf("create MIG instance on %s: MIG is off: %w", uuid, gpu.ErrUnsupported)
	}
	there, err := instancesOf(h)
	if err != nil {
		return gpu.Instance{}, err
	}
	others := make([]gpu.Instance, 0, len(there))
	for _, t := range there {
		if t.Profile == profile && t.Start == start {
			return t.Instance, ensureCompute(t.nvml, profile, t.Width)
		}
		others = append(others, t.Instance)
	}
	placement, err := gpu.PlacementsOf(h.card.Model).Check(profile, start, others)
	if err != nil {
		return gpu.Instance{}, fmt.Errorf("create MIG instance on %s: %w", uuid, err)
	}
	return n.create(h, profile, start, placement.Width)
}

func (n *NVML) create(h handle, profile string, start, width int) (gpu.Instance, error) {
	id, _, err := profileIDs(profile, width)
	if err != nil {
		return gpu.Instance{}, err
	}
	info, ret := h.GetGpuInstanceProfileInfo(id)
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, failed("find MIG profile "+profile, ret)
	}
	possible, ret := h.GetGpuInstancePossiblePlacements(&info)
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, failed("list placements of "+profile, ret)
	}
	want := nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(width)} //nolint:gosec // both are below 8
	if !slices.Contains(possible, want) {
		return gpu.Instance{}, fmt.Errorf("the card's placements of %s are %v, our table's one is %v: %w", profile, possible, want, gpu.ErrPlacement)
	}
	made, ret := h.CreateGpuInstanceWithPlacement(&info, &want)
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, failed("create MIG instance "+profile, ret)
	}
	if err := ensureCompute(made, profile, width); err != nil {
		return gpu.Instance{}, err
	}
	about, ret := made.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.Instance{}, failed("read MIG instance", ret)
	}
	return gpu.Instance{UUID: migUUID(h, about.Id), Profile: profile, Start: start, Width: width}, nil
}

// ensureCompute gives a GPU instance the one compute instance that takes all of it.
func ensureCompute(gi nvml.GpuInstance, profile string, width int) error {
	_, id, err := profileIDs(profile, width)
	if err != nil {
		return err
	}
	info, ret := gi.GetComputeInstanceProfileInfo(id, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != nvml.SUCCESS {
		return failed("find compute profile of "+profile, ret)
	}
	there, ret := gi.GetComputeInstances(&info)
	if ret != nvml.SUCCESS {
		return failed("list compute instances", ret)
	}
	if len(there) > 0 {
		return nil
	}
	if _, ret := gi.CreateComputeInstance(&info); ret != nvml.SUCCESS {
		return failed("create compute instance of "+profile, ret)
	}
	return nil
}

// DestroyInstance implements Driver. Compute instances go first.
func (n *NVML) DestroyInstance(_ context.Context, uuid string, start int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, err := n.find(uuid)
	if err != nil {
		return err
	}
	there, err := instancesOf(h)
	if err != nil {
		return err
	}
	for _, t := range there {
		if t.Start != start {
			continue
		}
		if err := dropCompute(t.nvml); err != nil {
			return err
		}
		if ret := t.nvml.Destroy(); ret != nvml.SUCCESS {
			return failed("destroy MIG instance", ret)
		}
	}
	return nil
}

func dropCompute(gi nvml.GpuInstance) error {
	for id := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(id, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			continue // this instance does not have the profile
		}
		there, ret := gi.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			return failed("list compute instances", ret)
		}
		for _, ci := range there {
			if ret := ci.Destroy(); ret != nvml.SUCCESS {
				return failed("destroy compute instance", ret)
			}
		}
	}
	return nil
}
