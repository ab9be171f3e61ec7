package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/internal/daemon"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/gpu/nvidia"
	"github.com/leasehold/leasehold/agent/internal/host"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/imaging"
	"github.com/leasehold/leasehold/agent/internal/metal"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

// bootOptions are what the machine was booted with, by its kernel's command line: leasehold.NAME=VALUE.
type bootOptions struct {
	root string
	common
	name, bootToken string
}

func serviceOSCommand() *cobra.Command {
	o := bootOptions{}
	cmd := &cobra.Command{
		Use:   "service-os",
		Short: "Run in the service OS, which machines that are leased whole boot from the network before and after each lease",
		Long: "Run in the service OS: inventory, preflight, imaging and wiping of a machine that is leased whole. Everything that it needs to know\n" +
			"comes with the kernel's command line, the one-time token of this very boot among it; its identity lasts as long as the boot.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.read(); err != nil {
				return err
			}
			agent, err := o.agent()
			if err != nil {
				return err
			}
			return agent.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&o.root, "root", "/", "directory below which /proc, /sys, /dev and /run lie")
	cmd.Flags().StringVar(&o.stateDir, "state-dir", "/run/leasehold", "directory for keys, journal and state, in memory")
	cmd.Flags().StringVar(&o.caFile, "ca-file", "", "PEM file with the authority that signs the control plane's certificate, if it is a private one")
	return cmd
}

// read takes over what the kernel's command line says.
func (o *bootOptions) read() error {
	line, err := os.ReadFile(filepath.Join(o.root, "proc/cmdline"))
	if err != nil {
		return fmt.Errorf("read the kernel's command line: %w", err)
	}
	said := parseCommandLine(string(line))
	o.server, o.name, o.bootToken, o.insecure = said["server"], said["node"], said["token"], said["insecure"] == "1"
	if o.server == "" || o.name == "" || o.bootToken == "" {
		return errors.New("the kernel's command line does not say leasehold.server, leasehold.node and leasehold.token")
	}
	return os.MkdirAll(o.stateDir, 0o700)
}

// parseCommandLine returns our parameters, without their prefix.
func parseCommandLine(line string) map[string]string {
	said := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if name, value, found := strings.Cut(strings.TrimPrefix(word, "leasehold."), "="); found && strings.HasPrefix(word, "leasehold.") {
			said[name] = value
		}
	}
	return said
}

func (o bootOptions) agent() (*daemon.Agent, error) {
	machine := host.Machine{Root: o.root}
	boot, err := machine.BootID()
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(o.caFile)
	if err != nil {
		return nil, err
	}
	id, err := identity.Open(o.stateDir)
	if err != nil {
		return nil, fmt.Errorf("open identity: %w", err)
	}
	a := &daemon.Agent{
		Line:     daemon.Line{Server: o.server, Insecure: o.insecure, Transport: transport, Now: now},
		Identity: id, BootID: boot, Log: o.log(), Sequence: rising(machine.UptimeMillis),
		Enroll: protocol.EnrollRequest{
			Kind: protocol.NodeAgent, Name: o.name, Serial: machine.Serial(), BootID: boot, Token: o.bootToken, AgentVersion: version,
		},
	}
	a.Build = func(now func() time.Time) (daemon.Parts, error) {
		gpus, ports, err := hardware(o.root, now)
		if err != nil {
			return daemon.Parts{}, err
		}
		runtime := &metal.Runtime{Root: o.root, WorkDir: o.stateDir, Images: imaging.Writer{Client: &http.Client{Transport: transport}}, Now: now}
		n, err := node.New(node.Config{
			Dir: o.stateDir, NodeID: func() string { return id.Record().NodeID }, GPU: gpus, RDMA: ports, Access: &metal.Access{Runtime: runtime},
			Runtime: runtime, Host: machine.Inventory, Now: now,
		})
		if err != nil {
			return daemon.Parts{}, err
		}
		return daemon.Parts{Source: n, Handlers: n.Handlers()}, nil
	}
	return a, nil
}

// simulatedHardware is where QEMU shows what a virtual machine's owner says of GPUs that it does not have. No other machine has that file.
const simulatedHardware = "sys/firmware/qemu_fw_cfg/by_name/opt/leasehold/hardware/raw"

// hardware returns the drivers of GPUs and adapters.
func hardware(root string, now func() time.Time) (gpu.Driver, rdma.Driver, error) {
	data, err := os.ReadFile(filepath.Join(root, simulatedHardware))
	if errors.Is(err, fs.ErrNotExist) {
		return nvidia.Open(now), rdma.NewSysfs(filepath.Join(root, rdma.Root), now), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read simulated hardware: %w", err)
	}
	var described struct {
		Driver string         `json:"driver"`
		GPUs   []protocol.GPU `json:"gpus"`
	}
	if err := json.Unmarshal(data, &described); err != nil {
		return nil, nil, fmt.Errorf("decode simulated hardware: %w", err)
	}
	gpus, err := gpu.NewSim(gpu.SimConfig{GPUs: described.GPUs, Version: described.Driver, Now: now})
	return gpus, rdma.NewSysfs(filepath.Join(root, rdma.Root), now), err
}
