package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// devDir is where the kernel makes the adapters' device nodes.
const devDir = "/dev/infiniband"

// DeviceNodes returns what a program needs to use the adapters that have these ports, and no others: their own node each, and the connection
// manager's, which is one for all. ErrNotFound for a port that no adapter has, or whose adapter cannot be used by programs.
func (s *Sysfs) DeviceNodes(ctx context.Context, ports []protocol.GUID) ([]string, error) {
	hcas, err := s.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, guid := range ports {
		at := slices.IndexFunc(hcas, func(h protocol.HCA) bool {
			return slices.ContainsFunc(h.Ports, func(p protocol.HCAPort) bool { return p.GUID == guid })
		})
		if at < 0 {
			return nil, fmt.Errorf("port %v: %w", guid, ErrNotFound)
		}
		verbs, err := os.ReadDir(filepath.Join(s.root, hcas[at].Device, "device", "infiniband_verbs"))
		if err != nil || len(verbs) == 0 {
			return nil, fmt.Errorf("port %v: %s has no verbs device: %w", guid, hcas[at].Device, errors.Join(ErrNotFound, err))
		}
		for _, v := range verbs {
			nodes = append(nodes, filepath.Join(devDir, v.Name()))
		}
	}
	if _, err := os.Stat(filepath.Join(devDir, "rdma_cm")); err == nil && len(nodes) > 0 {
		nodes = append(nodes, filepath.Join(devDir, "rdma_cm"))
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}
