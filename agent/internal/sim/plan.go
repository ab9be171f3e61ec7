// Package sim is a whole simulated site in one process: virtual nodes and fabrics, each with an agent of its own that speaks the
// real protocol over real HTTP. Only the hardware is not there.
package sim

import (
	"errors"
	"fmt"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Site is the plan of a simulated site.
type Site struct {
	Name   string  `yaml:"name"`
	Groups []Group `yaml:"groups"`
}

// Group is a number of equal nodes.
type Group struct {
	// Name begins the nodes' names: h100 makes gpu-h100-01, gpu-h100-02, …
	Name  string `yaml:"name"`
	Count int    `yaml:"count"`
	GPU   string `yaml:"gpu"` // a key of models
	GPUs  int    `yaml:"gpus"`
	// MIG turns MIG mode on, so that the nodes are for shared use.
	MIG bool `yaml:"mig"`
	// Fabric is the subnet that the nodes' adapters are on, one adapter a GPU; "" for none.
	Fabric string `yaml:"fabric"`
	// NodesPerPod is how many nodes share a set of leaf switches, one leaf a rail; 0 is 8.
	NodesPerPod int `yaml:"nodes_per_pod"` //nolint:tagliatelle // snake case, as everywhere else
}

const (
	maxNodes       = 100_000
	maxGPUs        = 16
	maxFabrics     = 15 // four bits of a GUID tell them apart
	defaultPodSize = 8
	maxPodSize     = 32
)

// DefaultSite is sim-1: 16 nodes of 8 H100 with 8 NDR rails on a two-level fat tree, 4 nodes of 8 A100 in MIG mode, 2 of 4 RTX
// 4090 and 2 of 8 MI250X.
func DefaultSite() Site {
	return Site{Name: "sim-1", Groups: []Group{
		{Name: "h100", Count: 16, GPU: "h100-sxm-80gb", GPUs: 8, Fabric: "ib-1"},
		{Name: "a100", Count: 4, GPU: "a100-sxm-80gb", GPUs: 8, MIG: true},
		{Name: "4090", Count: 2, GPU: "rtx4090-24gb", GPUs: 4},
		{Name: "mi250x", Count: 2, GPU: "mi250x-128gb", GPUs: 8},
	}}
}

// ReadSite reads a plan in YAML and checks it.
func ReadSite(r io.Reader) (Site, error) {
	var site Site
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	if err := d.Decode(&site); err != nil {
		return site, fmt.Errorf("read site plan: %w", err)
	}
	return site, site.Validate()
}

// Validate says everything that is wrong with the plan.
func (s Site) Validate() error {
	word := regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !word.MatchString(s.Name) {
		complain("site name %q is not a word of a-z, 0-9 and -", s.Name)
	}
	nodes, names, fabrics := 0, map[string]bool{}, map[string]bool{}
	for _, g := range s.Groups {
		nodes += max(g.Count, 0)
		switch {
		case !word.MatchString(g.Name) || names[g.Name]:
			complain("group name %q is not a word of its own", g.Name)
		case g.Count < 1 || g.GPUs < 1 || g.GPUs > maxGPUs:
			complain("group %s: count must be at least 1 and gpus 1 to %d", g.Name, maxGPUs)
		case g.NodesPerPod < 0 || g.NodesPerPod > maxPodSize:
			complain("group %s: nodes_per_pod must be at most %d", g.Name, maxPodSize)
		case g.Fabric != "" && !word.MatchString(g.Fabric):
			complain("group %s: fabric name %q is not a word", g.Name, g.Fabric)
		}
		if m, known := modelOf(g.GPU); !known {
			complain("group %s: unknown gpu %q; known are %v", g.Name, g.GPU, modelKeys())
		} else if g.MIG && !m.mig {
			complain("group %s: %s has no MIG", g.Name, g.GPU)
		}
		names[g.Name] = true
		fabrics[g.Fabric] = true
	}
	if len(fabrics) > maxFabrics {
		complain("a site has at most %d fabrics", maxFabrics)
	}
	if nodes < 1 || nodes > maxNodes {
		complain("a site has 1 to %d nodes, not %d", maxNodes, nodes)
	}
	return errors.Join(errs...)
}
