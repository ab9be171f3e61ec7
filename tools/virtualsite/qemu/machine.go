// Package qemu runs virtual machines that stand for bare metal: an NVMe drive, a network card that boots from the network, a serial
// console that is kept in a file, and power that can be cut.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Source is where a machine boots from.
type Source string

// The sources.
const (
	Disk    Source = "disk"
	Network Source = "network"
)

// Config is what a machine is made of.
type Config struct {
	Name   string
	Dir    string // disk, console and socket lie here
	UUID   string
	Serial string
	MAC    string
	// Memory is in MiB, Disk in bytes.
	MemoryMiB int
	DiskBytes int64
	// BootFile is what the network's DHCP server names as the file to boot.
	BootFile string
	// SSHPort is a port of this machine's loopback interface that leads to the guest's port 22; 0: none.
	SSHPort int
	// FirmwareFiles are shown to the guest by QEMU's firmware interface, by name, e.g. "opt/org.example/x".
	FirmwareFiles map[string]string
	// Accelerator is tcg or kvm; "": tcg, which works everywhere.
	Accelerator string
	Log         *slog.Logger
}

// Machine is one virtual machine, on or off. It is safe for concurrent use.
type Machine struct {
	cfg     Config
	program string
	share   string // QEMU's firmware, "" where it looks by itself

	mu      sync.Mutex
	process *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	monitor *monitor
	wanted  bool // its end was asked for
}

// errOff says that the machine has no power.
var errOff = errors.New("the machine is off")

// New finds QEMU, in the directories too, and makes the machine's disk if it has none.
func New(ctx context.Context, cfg Config, dirs ...string) (*Machine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Machine{cfg: cfg}
	var err error
	if m.program, m.share, err = Find("qemu-system-x86_64", dirs...); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make machine's directory: %w", err)
	}
	if _, err := os.Stat(m.disk()); errors.Is(err, os.ErrNotExist) {
		err = sparse(m.disk(), cfg.DiskBytes)
		return m, err
	}
	return m, ctx.Err()
}

// sparse makes a file that reads as zeros and takes no room.
func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	return nil
}

// Find looks for a program on the path and below the directories, where Debian's packages may be unpacked. The second result is where
// QEMU's own files lie then.
func Find(program string, dirs ...string) (string, string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, "usr/bin", program)
		if _, err := os.Stat(path); err == nil {
			return path, filepath.Join(dir, "usr/share"), nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", "", fmt.Errorf("find %s (tools/setup qemu fetches it): %w", program, err)
	}
	return path, "", nil
}

func (m *Machine) disk() string { return filepath.Join(m.cfg.Dir, "nvme.raw") }

// Disk is the file that holds the machine's drive, as the drive's sectors lie.
func (m *Machine) Disk() string { return m.disk() }

// Console is the file that keeps what the machine wrote to its serial port.
func (m *Machine) Console() string { return filepath.Join(m.cfg.Dir, "console.log") }

// socket is short: the kernel allows 107 bytes.
func (m *Machine) socket() string { return filepath.Join(m.cfg.Dir, "qmp") }

// On reports whether the machine has power.
func (m *Machine) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process != nil
}

// TurnOn starts the machine from the sources in that order. exited is called when it has lost power by itself: reboot says that it wants to
// start again. A machine that is on stays as it is.
func (m *Machine) TurnOn(ctx context.Context, order []Source, exited func(reboot bool)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		return nil
	}
	if err := os.Remove(m.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old monitor: %w", err)
	}
	process := exec.Command(m.program, m.arguments(order)...) //nolint:gosec,noctx // our own arguments; it outlives the request that turns it on
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	log, err := os.OpenFile(filepath.Join(m.cfg.Dir, "qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open machine's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the process has its own
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return fmt.Errorf("start %s: %w", m.program, err)
	}
	ended := make(chan struct{})
	m.process, m.ended, m.wanted = process, ended, false
	m.monitor, err = connect(ctx, m.socket(), ended)
	go m.await(process, ended, m.monitor, exited)
	if err != nil {
		m.wanted = true
		return errors.Join(fmt.Errorf("reach %s's monitor: %w", m.cfg.Name, err), process.Process.Kill())
	}
	return nil
}

func (m *Machine) await(process *exec.Cmd, ended chan struct{}, monitor *monitor, exited func(reboot bool)) {
	err := process.Wait()
	m.mu.Lock()
	wanted := m.wanted
	m.process, m.monitor = nil, nil
	m.mu.Unlock()
	close(ended)
	reboot := monitor != nil && monitor.wantsReboot()
	m.cfg.Log.Info("machine lost power", "machine", m.cfg.Name, "asked_for", wanted, "reboot", reboot, "error", err)
	if !wanted && exited != nil {
		exited(reboot)
	}
}

// TurnOff cuts the power and returns when it is gone.
func (m *Machine) TurnOff(ctx context.Context) error {
	m.mu.Lock()
	process, ended := m.process, m.ended
	m.wanted = true
	m.mu.Unlock()
	if process == nil {
		return nil
	}
	if err := process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cut power of %s: %w", m.cfg.Name, err)
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PressPower presses the power button for a moment: the operating system may take it as a wish to shut down.
func (m *Machine) PressPower(ctx context.Context) error {
	m.mu.Lock()
	monitor := m.monitor
	m.mu.Unlock()
	if monitor == nil {
		return errOff
	}
	return monitor.execute(ctx, "system_powerdown")
}

func (m *Machine) arguments(order []Source) []string {
	index := map[Source]int{}
	for i, s := range order {
		index[s] = i + 1
	}
	accelerator := "tcg,thread=multi,tb-size=256"
	if m.cfg.Accelerator == "kvm" {
		accelerator = "kvm"
	}
	network := "user,id=net0,bootfile=" + m.cfg.BootFile
	if m.cfg.SSHPort != 0 {
		network += ",hostfwd=tcp:127.0.0.1:" + strconv.Itoa(m.cfg.SSHPort) + "-:22"
	}
	arguments := []string{
		"-name", m.cfg.Name, "-uuid", m.cfg.UUID, "-machine", "q35", "-accel", accelerator, "-smp", "1", "-m", strconv.Itoa(m.cfg.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-action", "reboot=shutdown",
		"-smbios", "type=1,manufacturer=Leasehold,product=Virtual machine,serial=" + m.cfg.Serial, "-smbios", "type=3,serial=" + m.cfg.Serial,
		"-chardev", "file,id=console,append=on,path=" + m.Console(), "-serial", "chardev:console",
		"-qmp", "unix:" + m.socket() + ",server=on,wait=off",
		"-netdev", network,
		"-device", "virtio-net-pci,netdev=net0,mac=" + m.cfg.MAC + boot(index[Network]),
		"-drive", "if=none,id=disk0,format=raw,discard=unmap,detect-zeroes=unmap,file=" + m.disk(),
		"-device", "nvme,drive=disk0,serial=" + m.cfg.Serial + "-nvme" + boot(index[Disk]),
		"-device", "virtio-rng-pci",
	}
	for name, file := range m.cfg.FirmwareFiles {
		arguments = append(arguments, "-fw_cfg", "name="+name+",file="+file)
	}
	if m.share != "" {
		for _, dir := range []string{"qemu", "seabios"} {
			arguments = append(arguments, "-L", filepath.Join(m.share, dir))
		}
		arguments = append(arguments, "-L", filepath.Join(m.share, "../lib/ipxe/qemu"))
	}
	return arguments
}

func boot(index int) string {
	if index == 0 {
		return ""
	}
	return ",bootindex=" + strconv.Itoa(index)
}

// startWithin bounds how long QEMU takes to open its monitor.
const startWithin = 20 * time.Second
