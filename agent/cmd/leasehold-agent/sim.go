package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/sim"
)

// simOptions are the flags of sim.
type simOptions struct {
	common
	site, fabric, speed    string
	toolDirs               []string
	sshListen, sshAnnounce string
	sshPort                int
	images                 string
	heartbeat              time.Duration
}

func simCommand() *cobra.Command {
	var o simOptions
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a whole simulated site: virtual nodes and their fabric, each with an agent of its own",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runSim(cmd, o) },
	}
	o.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&o.site, "site", "default", "the site's plan: default, or a YAML file")
	f.StringVar(&o.fabric, "fabric", "sim", "the subnet manager: sim, or opensm for a real OpenSM on a simulated subnet")
	f.StringSliceVar(&o.toolDirs, "tool-dir", nil, "directory into which opensm and ibsim-utils were unpacked, if they are not installed")
	f.StringVar(&o.speed, "speed", "real", "real: work takes seconds; instant: no time")
	f.StringVar(&o.sshListen, "ssh-listen", "127.0.0.1", "address on which the virtual nodes' SSH servers listen")
	f.StringVar(&o.sshAnnounce, "ssh-advertise", "", "host that customers are told to log in to (default: the listen address)")
	f.IntVar(&o.sshPort, "ssh-port", 0, "SSH port of the first node, counted up by node (default: free ports, kept over restarts)")
	f.StringVar(&o.images, "images", "", "directory with tenants' images; with it, tenants of parts of machines are in real containers on this one (as root)")
	f.DurationVar(&o.heartbeat, "heartbeat", 0, "interval of heartbeats (default: as the control plane says)")
	cmd.AddCommand(injectCommand())
	return cmd
}

func runSim(cmd *cobra.Command, o simOptions) error {
	options, err := o.options(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := o.lifetime(cmd.Context())
	defer cancel()
	err = sim.Run(ctx, options)
	if errors.Is(err, ibsim.ErrNoTools) {
		return fmt.Errorf("%w (on Debian: apt-get install opensm ibsim-utils, or give their directory with --tool-dir)", err)
	}
	return err
}

func (o simOptions) options(cmd *cobra.Command) (sim.Options, error) {
	site, err := o.plan()
	if err != nil {
		return sim.Options{}, err
	}
	token, err := o.token()
	if err != nil {
		return sim.Options{}, err
	}
	client, err := o.client()
	if err != nil {
		return sim.Options{}, err
	}
	options := sim.Options{
		Server: o.server, Insecure: o.insecure, HTTP: client, Token: token, StateDir: o.stateDir, Site: site,
		SSHListen: o.sshListen, SSHAdvertise: o.sshAnnounce, SSHPort: o.sshPort, Heartbeat: o.heartbeat, Version: version, BootID: rand.Text(),
		Now: now, Log: o.log(),
		Ready: func(nodes, fabrics int) {
			fmt.Fprintf(cmd.OutOrStdout(), "site %s: %d nodes and %d fabrics are enrolled\n", site.Name, nodes, fabrics)
		},
	}
	if o.images != "" {
		options.Containers = o.containers(options.Log)
	}
	switch o.speed {
	case "real":
	case "instant":
		options.Instant = true
	default:
		return options, fmt.Errorf("--speed is real or instant, not %q", o.speed)
	}
	switch o.fabric {
	case "sim":
		options.Fabric = sim.InMemory
	case "opensm":
		options.Fabric = sim.OpenSM(o.toolDirs...)
	default:
		return options, fmt.Errorf("--fabric is sim or opensm, not %q", o.fabric)
	}
	return options, nil
}

func (o simOptions) plan() (sim.Site, error) {
	if o.site == "default" {
		return sim.DefaultSite(), nil
	}
	file, err := os.Open(o.site)
	if err != nil {
		return sim.Site{}, fmt.Errorf("open site plan: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	return sim.ReadSite(file)
}

func injectCommand() *cobra.Command {
	var stateDir string
	var device int
	cmd := &cobra.Command{
		Use:   "inject NODE FAULT",
		Short: "Inject a fault into a running simulated site",
		Long:  "Inject a fault into a node of a running simulated site:\n" + faultList(),
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sim.Inject(cmd.Context(), stateDir, sim.Injection{Node: args[0], Fault: args[1], Device: device})
		},
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", "", "the site's state directory")
	cmd.Flags().IntVar(&device, "device", 0, "bay or rail, from 0, for faults of one device")
	if err := cmd.MarkFlagRequired("state-dir"); err != nil {
		panic(err) // the flag is defined right above
	}
	return cmd
}

func faultList() string {
	var out strings.Builder
	known := sim.Faults()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		fmt.Fprintf(&out, "  %-14s %s\n", name, known[name])
	}
	return out.String()
}
