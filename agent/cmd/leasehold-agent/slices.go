package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/internal/runtime/container"
)

// sliceOptions are the flags of a host that is leased in parts.
type sliceOptions struct {
	images, dir, runtime, init string
	cdiDirs                    []string
	cdiRefresh                 string
	sshListen, sshAnnounce     string
	sshPort                    int
	egress, pool               string
	closed, servers            []string

	stateDir, hostRoot string // the agent's own
}

func (s *sliceOptions) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.images, "images", "", "directory with tenants' images, NAME.tar[.gz|.zst] and a .sha256 beside each; with it this host is leased in parts, a container a lease")
	f.StringVar(&s.dir, "tenants-dir", "", "directory on the file system that tenants' disks come from (default: tenants below the state directory)")
	f.StringVar(&s.runtime, "oci-runtime", "runc", "OCI runtime: runc or crun")
	f.StringVar(&s.init, "oci-init", "catatonit", "static program that is every container's first process")
	f.StringSliceVar(&s.cdiDirs, "cdi-dir", []string{"/etc/cdi", "/var/run/cdi"}, "directories with CDI specifications of this host's GPUs, by UUID")
	f.StringVar(&s.cdiRefresh, "cdi-refresh", "", "command that describes the GPUs anew (default: nvidia-ctk, if it is there; \"-\": none)")
	f.StringVar(&s.sshListen, "ssh-listen", "0.0.0.0", "address on which tenants log in")
	f.StringVar(&s.sshAnnounce, "ssh-advertise", "", "host that customers are told to log in to (default: this host's name)")
	f.IntVar(&s.sshPort, "ssh-port", 2222, "port on which tenants log in")
	f.StringVar(&s.egress, "egress", "", "interface through which tenants reach the outside (default: they do not)")
	f.StringVar(&s.pool, "egress-pool", "198.18.0.0/22", "addresses of this host's own for the tenants' ends, two a slot")
	f.StringSliceVar(&s.closed, "egress-closed", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15"},
		"networks that tenants may not reach, besides each other and this host")
	f.StringSliceVar(&s.servers, "name-server", nil, "name servers that tenants are told and may reach")
}

// tenants makes the drivers that hold tenants and let them in. Both are nil when this host is not leased in parts.
func (s *sliceOptions) tenants(ctx context.Context, c common, gpus gpu.Driver, adapters *rdma.Sysfs, hostname string, now func() time.Time) (access.Driver, node.Runtime, error) {
	if s.images == "" {
		return nil, nil, nil
	}
	config, err := s.config(gpus, adapters, now)
	if err != nil {
		return nil, nil, err
	}
	config.Log = c.log()
	driver, err := container.New(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	if err := driver.Restore(ctx); err != nil {
		config.Log.Error("not every tenant's container could be brought back", "error", err)
	}
	door, err := access.NewServer(ctx, access.ServerConfig{
		Dir: filepath.Join(s.stateDir, "access"), Listen: s.sshListen, Advertise: cmp.Or(s.sshAnnounce, hostname), Port: s.sshPort, Sessions: driver, Now: now,
		Log: config.Log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open access: %w", err)
	}
	context.AfterFunc(ctx, func() {
		if err := door.Close(); err != nil {
			config.Log.Error("SSH server did not close", "error", err)
		}
	})
	return door, driver, nil
}

func (s *sliceOptions) config(gpus gpu.Driver, adapters *rdma.Sysfs, now func() time.Time) (container.Config, error) {
	dir, err := filepath.Abs(cmp.Or(s.dir, filepath.Join(s.stateDir, "tenants")))
	if err != nil {
		return container.Config{}, fmt.Errorf("find tenants' directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return container.Config{}, fmt.Errorf("make tenants' directory: %w", err)
	}
	egress, err := s.wayOut()
	if err != nil {
		return container.Config{}, err
	}
	config := container.Config{
		Name: containersOf(dir), Dir: dir, Images: s.images, Runtime: s.runtime, Init: s.init, GPU: gpus, Adapters: adapters.DeviceNodes, Egress: egress, Now: now,
		CDIDirs: s.cdiDirs, CDIRefresh: strings.Fields(s.cdiRefresh),
		Machine: func(ctx context.Context) (container.Machine, error) {
			devices, err := gpus.Devices(ctx)
			if err != nil {
				return container.Machine{}, fmt.Errorf("list GPUs: %w", err)
			}
			bays, err := container.BaysOf(dir, devices)
			if err != nil {
				return container.Machine{}, err
			}
			return container.ReadMachine(s.hostRoot, dir, bays)
		},
	}
	switch tool, err := exec.LookPath("nvidia-ctk"); {
	case s.cdiRefresh == "-":
		config.CDIRefresh = nil
	case s.cdiRefresh == "" && err == nil:
		own := filepath.Join(dir, "cdi")
		if err := os.MkdirAll(own, 0o700); err != nil {
			return config, fmt.Errorf("make directory of device descriptions: %w", err)
		}
		// The last directory counts most: what another tool wrote of the same devices is not in the way.
		config.CDIDirs = append(config.CDIDirs, own)
		config.CDIRefresh = []string{tool, "cdi", "generate", "--device-name-strategy=uuid", "--output=" + filepath.Join(own, "nvidia.yaml")}
	}
	return config, nil
}

func (s *sliceOptions) wayOut() (container.Egress, error) {
	egress := container.Egress{Interface: s.egress}
	if s.egress == "" {
		return egress, nil
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,15}$`).MatchString(s.egress) {
		return egress, fmt.Errorf("--egress: %q is no interface's name", s.egress)
	}
	var err error
	if egress.Pool, err = netip.ParsePrefix(s.pool); err != nil {
		return egress, fmt.Errorf("--egress-pool: %w", err)
	}
	if err := egress.Validate(); err != nil {
		return egress, fmt.Errorf("--egress-pool: %w", err)
	}
	for _, text := range s.closed {
		network, err := netip.ParsePrefix(text)
		if err != nil || !network.Addr().Is4() {
			return egress, fmt.Errorf("--egress-closed: %q is not a network of IPv4", text)
		}
		egress.Closed = append(egress.Closed, network)
	}
	for _, text := range s.servers {
		server, err := netip.ParseAddr(text)
		if err != nil {
			return egress, fmt.Errorf("--name-server: %w", err)
		}
		egress.Servers = append(egress.Servers, server)
	}
	return egress, nil
}
