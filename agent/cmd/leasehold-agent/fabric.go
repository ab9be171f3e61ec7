package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/internal/daemon"
	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/host"
	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// fabricOptions are the flags of fabric.
type fabricOptions struct {
	common
	ufm                                                                         ufmOptions
	standbys                                                                    []string
	smpdump                                                                     bool
	kind, name, device, partitionsFile, optionsFile, pidFile, mkeyFile, version string
}

func fabricCommand() *cobra.Command {
	var o fabricOptions
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Run beside a subnet manager: write its partitions, and read back what the ports hold",
		Long: "Run beside a subnet manager.\n" +
			"With --driver opensm on its host: OpenSM must have been started with -P and the file given here.\n" +
			"With --driver ufm anywhere from where NVIDIA's UFM can be reached; on a host of the fabric --device has the ports read too.\n" +
			"The UFM driver is written to public documentation and was not tried on a real UFM. The way to the ports (/dev/infiniband/umad*) was not tried on hardware; on a simulated subnet use the sim mode with --fabric opensm.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runFabric(cmd, o) },
	}
	o.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "the fabric's name in the site's plan")
	f.StringVar(&o.kind, "driver", driverOpenSM, "the subnet manager: opensm or ufm")
	f.StringVar(&o.device, "device", "", "MAD device of a port on the fabric, through which ports are read (default for opensm: "+defaultDevice+"; for ufm: none)")
	f.BoolVar(&o.smpdump, "smpdump", false, "read ports by infiniband-diags' smpdump instead of --device: slow, without path queries, a way out where the device cannot be used directly")
	f.StringVar(&o.partitionsFile, "partitions-file", "", "opensm: the file that OpenSM was started with as -P; this agent owns it")
	f.StringVar(&o.optionsFile, "options-file", "", "opensm: the file that OpenSM was started with as -F, for the posture (default: posture is unknown)")
	f.StringVar(&o.pidFile, "pid-file", "/run/opensm.pid", "opensm: file with OpenSM's process id")
	f.StringVar(&o.mkeyFile, "m-key-file", "", "file with the fabric's M_Key in hex, if its ports are protected")
	f.StringArrayVar(&o.standbys, "standby", nil, "opensm: program that is called with the partition file's path whenever it changes, and puts a copy in place on a standby's host and sends that OpenSM a SIGHUP (repeatable)")
	f.StringVar(&o.version, "opensm-version", "OpenSM", "opensm: what the manager calls itself, for the inventory")
	o.ufm.bind(f)
	if err := cmd.MarkFlagRequired("name"); err != nil {
		panic(err) // the flag is defined right above
	}
	return cmd
}

// The drivers.
const (
	driverOpenSM  = "opensm"
	driverUFM     = "ufm"
	defaultDevice = "/dev/infiniband/umad0"
)

func (o *fabricOptions) check() error {
	switch {
	case o.kind != driverOpenSM && o.kind != driverUFM:
		return fmt.Errorf("--driver is %q, and must be %s or %s", o.kind, driverOpenSM, driverUFM)
	case o.kind == driverOpenSM && o.partitionsFile == "":
		return errors.New("--driver opensm needs --partitions-file")
	case o.kind == driverUFM && (o.partitionsFile != "" || o.optionsFile != "" || len(o.standbys) > 0):
		return errors.New("--driver ufm has no partitions file, no options file and no standby: UFM keeps its own")
	}
	if o.kind == driverOpenSM && o.device == "" {
		o.device = defaultDevice
	}
	return nil
}

func runFabric(cmd *cobra.Command, o fabricOptions) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	lock, err := durable.LockDir(o.stateDir)
	if err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // it ends with the process in any case
	ctx, cancel := o.lifetime(cmd.Context())
	defer cancel()
	var client *smp.Client
	if o.device != "" {
		if client, err = o.open(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
	}
	driver, err := o.driver(ctx, client)
	if err != nil {
		return err
	}
	agent, err := o.agent(driver)
	if err != nil {
		return err
	}
	return agent.Run(ctx)
}

// open opens the way to the ports.
func (o fabricOptions) open() (*smp.Client, error) {
	var mkey uint64
	if o.mkeyFile != "" {
		data, err := os.ReadFile(o.mkeyFile)
		if err != nil {
			return nil, fmt.Errorf("read M_Key: %w", err)
		}
		if mkey, err = strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(data)), "0x"), 16, 64); err != nil {
			return nil, fmt.Errorf("read M_Key: %s does not hold one in hex", o.mkeyFile) // without the content: it is a secret
		}
	}
	if o.smpdump {
		smpdump := func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "smpdump", args...) //nolint:gosec // its arguments are ours
		}
		transport, err := smp.NewDiags(smpdump, mkey, filepath.Join(o.stateDir, "ibdiag.conf"))
		if err != nil {
			return nil, err
		}
		return smp.NewClient(transport, 0), nil
	}
	transport, err := smp.OpenUmad(o.device)
	if err != nil {
		return nil, err
	}
	return smp.NewClient(transport, mkey), nil
}

func (o fabricOptions) driver(ctx context.Context, client *smp.Client) (fabric.Driver, error) {
	if o.kind == driverUFM {
		return o.ufm.driver(o.stateDir, client)
	}
	var standbys []opensm.Standby
	for _, program := range o.standbys {
		standbys = append(standbys, opensm.Program(program))
	}
	return opensm.New(ctx, opensm.Config{
		Standbys: standbys, Client: client, Manager: opensm.PIDFile(o.pidFile), PartitionsFile: o.partitionsFile, OptionsFile: o.optionsFile, StateDir: o.stateDir,
		Version: o.version, Patience: fabric.DefaultPatience(),
	})
}

func (o fabricOptions) agent(driver fabric.Driver) (*daemon.Agent, error) {
	machine := host.Machine{Root: "/"}
	boot, err := machine.BootID()
	if err != nil {
		return nil, err
	}
	a, err := o.common.agent(protocol.EnrollRequest{Kind: protocol.FabricAgent, Name: o.name, BootID: boot})
	if err != nil {
		return nil, err
	}
	a.Sequence = rising(machine.UptimeMillis)
	a.Build = func(now func() time.Time) (daemon.Parts, error) {
		handlers := fabric.Handlers(fabric.HandlerConfig{Driver: driver, FabricID: a.Identity.Record().FabricID, Now: now})
		return daemon.Parts{Source: fabric.Source{Driver: driver}, Handlers: handlers, Whole: true}, nil
	}
	return a, nil
}
