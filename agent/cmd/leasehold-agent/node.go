package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/internal/daemon"
	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/gpu/nvidia"
	"github.com/leasehold/leasehold/agent/internal/host"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

// nodeOptions are the flags of node.
type nodeOptions struct {
	common
	name, infiniBandRoot, hostRoot string

	slices sliceOptions
}

func nodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run on a GPU host: inventory, health, what its adapters' partition tables hold, and tenants in containers",
		Long: "Run on a GPU host: report inventory and health, and be the second witness of the fabric's isolation. With --images the host is leased in\n" +
			"parts: a container a lease, with exactly its GPUs or MIG instance, adapters, cores, memory and disk, into which its people log in by SSH.\n" +
			"Without, prepare, grant, revoke and wipe are refused with unsupported-on-this-host.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd, o) },
	}
	o.bind(cmd)
	o.slices.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "the node's name in the site's plan (default: the host's name)")
	f.StringVar(&o.infiniBandRoot, "root", rdma.Root, "directory in which the kernel shows InfiniBand adapters")
	f.StringVar(&o.hostRoot, "host-root", "/", "directory below which the host's /proc and /sys lie, for an agent in a container")
	return cmd
}

func runNode(cmd *cobra.Command, o nodeOptions) error {
	lock, err := durable.LockDir(o.stateDir)
	if err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // it ends with the process in any case
	ctx, cancel := o.lifetime(cmd.Context())
	defer cancel()
	agent, err := o.agent(ctx)
	if err != nil {
		return err
	}
	return agent.Run(ctx)
}

func (o nodeOptions) agent(ctx context.Context) (*daemon.Agent, error) {
	machine := host.Machine{Root: o.hostRoot}
	boot, err := machine.BootID()
	if err != nil {
		return nil, err
	}
	name := cmp.Or(o.name, machine.Hostname())
	a, err := o.common.agent(protocol.EnrollRequest{Kind: protocol.NodeAgent, Name: name, Serial: machine.Serial(), BootID: boot})
	if err != nil {
		return nil, err
	}
	a.Sequence = rising(machine.UptimeMillis)
	a.Build = func(now func() time.Time) (daemon.Parts, error) {
		gpus, adapters := nvidia.Open(now), rdma.NewSysfs(o.infiniBandRoot, now)
		o.slices.stateDir, o.slices.hostRoot = o.stateDir, o.hostRoot
		door, tenants, err := o.slices.tenants(ctx, o.common, gpus, adapters, machine.Hostname(), now)
		if err != nil {
			return daemon.Parts{}, err
		}
		n, err := node.New(node.Config{
			Dir: o.stateDir, NodeID: func() string { return a.Identity.Record().NodeID }, GPU: gpus, RDMA: adapters, Access: door, Runtime: tenants,
			Host: machine.Inventory, Now: now,
		})
		if err != nil {
			return daemon.Parts{}, err
		}
		return daemon.Parts{Source: n, Handlers: n.Handlers()}, nil
	}
	return a, nil
}

// agent makes what node and fabric agents have in common.
func (c *common) agent(request protocol.EnrollRequest) (*daemon.Agent, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	var transport http.RoundTripper
	if transport, err = newTransport(c.caFile); err != nil {
		return nil, err
	}
	id, err := identity.Open(c.stateDir)
	if err != nil {
		return nil, fmt.Errorf("open identity: %w", err)
	}
	request.Token, request.AgentVersion = token, version
	return &daemon.Agent{
		Line:     daemon.Line{Server: c.server, Insecure: c.insecure, Transport: transport, Now: now},
		Identity: id, Enroll: request, BootID: request.BootID, Log: c.log(),
	}, nil
}

// rising makes numbers that grow from call to call, also over restarts of this program within a boot: the machine's uptime does.
func rising(uptimeMillis func() int64) func() int64 {
	var last int64
	return func() int64 {
		last = max(last+1, uptimeMillis())
		return last
	}
}
