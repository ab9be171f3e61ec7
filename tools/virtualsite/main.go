// Command virtualsite runs virtual machines that stand for bare metal, each with a BMC of its own on a port of the loopback interface, as a
// data centre's rack would have them. It writes what an operator would be handed with the rack, addresses, passwords and certificates of the
// BMCs, to machines.json in its directory.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/tools/virtualsite/bmc"
	"github.com/leasehold/leasehold/tools/virtualsite/qemu"
)

// options say what to run.
type options struct {
	dir, bootFile, accelerator, debian string
	machines, memoryMiB, diskMiB       int
	exitWithParent                     bool
}

func main() {
	var o options
	flag.StringVar(&o.dir, "state-dir", "", "directory for disks, consoles and machines.json")
	flag.StringVar(&o.bootFile, "boot-file", "", "what the machines' DHCP server names as the file to boot, a URL")
	flag.StringVar(&o.accelerator, "accel", "tcg", "tcg works everywhere; kvm is faster where it works")
	flag.StringVar(&o.debian, "tool-dir", "", "directory below which Debian's packages may be unpacked")
	flag.IntVar(&o.machines, "machines", 1, "how many machines")
	flag.IntVar(&o.memoryMiB, "memory-mib", 768, "memory of each")
	flag.IntVar(&o.diskMiB, "disk-mib", 2048, "drive of each")
	flag.BoolVar(&o.exitWithParent, "exit-with-parent", false, "end when standard input is closed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if o.exitWithParent {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) //nolint:errcheck // whatever ends it, the parent is gone
			stop()
		}()
	}
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "virtualsite:", err)
		os.Exit(1)
	}
}

// handover is what is known of a machine before it was ever on.
type handover struct {
	Name       string `json:"name"`
	BMCURL     string `json:"bmc_url"`
	User       string `json:"user"`
	Password   string `json:"password"`
	PinSHA256  string `json:"pin_sha256"`
	MAC        string `json:"mac"`
	AccessHost string `json:"access_host"`
	AccessPort int    `json:"access_port"`
	Disk       string `json:"disk"`    // its drive, as a file
	Console    string `json:"console"` // its serial console, as a file
}

func run(ctx context.Context, o options) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	group, ctx := errgroup.WithContext(ctx)
	rack := make([]handover, o.machines)
	machines := make([]*qemu.Machine, o.machines)
	for i := range rack {
		controller, listener, err := mount(ctx, o, i, &rack[i], &machines[i], log)
		if err != nil {
			return err
		}
		group.Go(func() error { return controller.Serve(ctx, listener) })
	}
	data, err := json.MarshalIndent(rack, "", "  ") //nolint:gosec // passwords of BMCs that end with this process; the file is its owner's alone
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, "machines.json"), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write machines.json: %w", err)
	}
	log.InfoContext(ctx, "the rack stands", "machines", o.machines)
	err = group.Wait()
	return errors.Join(err, cutAll(ctx, machines))
}

// cutAll turns the machines off: they do not outlive the rack.
func cutAll(ctx context.Context, machines []*qemu.Machine) error {
	quick, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var errs []error
	for _, m := range machines {
		errs = append(errs, m.TurnOff(quick))
	}
	return errors.Join(errs...)
}

// mount puts one machine with its BMC into the rack.
func mount(ctx context.Context, o options, i int, h *handover, machine **qemu.Machine, log *slog.Logger) (*bmc.Controller, net.Listener, error) {
	name := fmt.Sprintf("metal-%02d", i+1)
	dir := filepath.Join(o.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make machine's directory: %w", err)
	}
	hardware, err := describe(dir, i)
	if err != nil {
		return nil, nil, err
	}
	sshPort, err := freePort(ctx)
	if err != nil {
		return nil, nil, err
	}
	uuid, mac, serial := fmt.Sprintf("5ea5e401-0000-4000-8000-%012x", i+1), fmt.Sprintf("52:54:00:1e:a5:%02x", i+1), fmt.Sprintf("VM%04d", i+1)
	*machine, err = qemu.New(ctx, qemu.Config{
		Name: name, Dir: dir, UUID: uuid, Serial: serial, MAC: mac, MemoryMiB: o.memoryMiB, DiskBytes: int64(o.diskMiB) << 20, BootFile: o.bootFile,
		SSHPort: sshPort, FirmwareFiles: map[string]string{"opt/leasehold/hardware": hardware}, Accelerator: o.accelerator, Log: log,
	}, o.debian)
	if err != nil {
		return nil, nil, err
	}
	password := rand.Text()
	controller, err := bmc.New(bmc.Config{Name: name, UUID: uuid, Serial: serial, MAC: mac, User: "operator", Password: password, Host: host{*machine}, Log: log})
	if err != nil {
		return nil, nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("listen for BMC: %w", err)
	}
	pin := controller.Pin()
	*h = handover{
		Name: name, BMCURL: "https://" + listener.Addr().String(), User: "operator", Password: password, PinSHA256: hex.EncodeToString(pin[:]), MAC: mac,
		AccessHost: "127.0.0.1", AccessPort: sshPort, Disk: (*machine).Disk(), Console: (*machine).Console(),
	}
	return controller, listener, nil
}

func freePort(ctx context.Context) (int, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return 0, errors.Join(err, listener.Close())
	}
	var n int
	_, err = fmt.Sscan(port, &n)
	return n, errors.Join(err, listener.Close())
}

// describe writes what a virtual machine's firmware says of the GPUs that it does not have.
func describe(dir string, machine int) (string, error) {
	const gpus = 8
	var described struct {
		Driver string         `json:"driver"`
		GPUs   []protocol.GPU `json:"gpus"`
	}
	described.Driver = "6.3.0 (simulated)"
	for i := range gpus {
		described.GPUs = append(described.GPUs, protocol.GPU{
			UUID: fmt.Sprintf("GPU-5ea5e401-%04d-%04d", machine+1, i), Vendor: "amd", Model: "AMD Instinct MI250X", Serial: fmt.Sprintf("%d%03d", machine+1, i),
			MemoryBytes: 128 << 30, PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x20+0x10*i/2+i%2), NUMANode: 0,
		})
	}
	data, err := json.Marshal(described)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "hardware.json")
	return path, os.WriteFile(path, data, 0o600)
}

// host is a virtual machine as its BMC sees it.
type host struct{ machine *qemu.Machine }

// On implements bmc.Host.
func (h host) On() bool { return h.machine.On() }

// TurnOn implements bmc.Host.
func (h host) TurnOn(ctx context.Context, network bool, exited func(reboot bool)) error {
	order := []qemu.Source{qemu.Disk, qemu.Network}
	if network {
		order = []qemu.Source{qemu.Network, qemu.Disk}
	}
	// Each boot's console begins with a line of its own, so that one can be told from the next.
	line := strings.Join([]string{"\n--- power on", time.Now().UTC().Format(time.RFC3339), fmt.Sprint(order), "---\n"}, " ")
	if f, err := os.OpenFile(h.machine.Console(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(line) //nolint:errcheck // a console is no reason not to boot
		_ = f.Close()
	}
	return h.machine.TurnOn(ctx, order, exited)
}

// TurnOff implements bmc.Host.
func (h host) TurnOff(ctx context.Context) error { return h.machine.TurnOff(ctx) }

// PressPower implements bmc.Host.
func (h host) PressPower(ctx context.Context) error { return h.machine.PressPower(ctx) }
