package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	wholeGPU = gpu.SlotsPerBay
	// maxSlots is how many slots a machine has at most: those of sixteen GPUs.
	maxSlots = 16 * gpu.SlotsPerBay
	// maxImageBytes bounds an unpacked image.
	maxImageBytes = 200 << 30
)

// Config is what a driver is made of.
type Config struct {
	// Name tells this driver's containers, control groups and interfaces from others' on the machine: 1 to 6 of a–z and 0–9.
	Name string
	// Dir keeps places and their disks over restarts, on the file system that tenants' scratch is to come from.
	Dir string
	// Images is where the operator puts images, and Unpacked where they are kept ready; "": below Dir.
	Images, Unpacked string
	// Runtime is runc or crun, Init catatonit, a static program that waits and collects ended processes.
	Runtime, Init string
	// Run holds what does not outlive a boot. "" is /run/leasehold/Name.
	Run string
	// Machine says what there is to share out.
	Machine func(ctx context.Context) (Machine, error)
	GPU     gpu.Driver
	// CDIDirs hold the specifications of devices, and CDIRefresh, if any, is a command that brings them up to date.
	CDIDirs, CDIRefresh []string
	// Adapters returns the device nodes of the adapters that have these ports, e.g. /dev/infiniband/uverbs0.
	Adapters func(ctx context.Context, ports []protocol.GUID) ([]string, error)
	Slots    int // how many the machine has at most; 0: those of sixteen GPUs
	// Egress is how places reach the outside; the zero value: they do not.
	Egress Egress
	Now    func() time.Time
	Log    *slog.Logger
}

// Egress is a way out for tenants, with their addresses hidden behind the host's.
type Egress struct {
	Interface string       // the host's, "" for no way out
	Pool      netip.Prefix // two addresses a slot are taken from it
	// Closed lists what tenants may not reach besides each other and this host, e.g. the operator's networks.
	Closed  []netip.Prefix
	Servers []netip.Addr // name servers
}

// Driver is the containers of one machine. It implements node.Runtime and access.Machine.
type Driver struct {
	cfg    Config
	users  users
	oci    oci
	images images

	mu    sync.Mutex
	locks map[int]*sync.Mutex // by first slot: one thing at a time is done to a place
}

// New checks that this machine can hold containers and says what is missing if not.
func New(ctx context.Context, cfg Config) (*Driver, error) {
	if !regexp.MustCompile(`^[a-z0-9]{1,6}$`).MatchString(cfg.Name) {
		return nil, fmt.Errorf("containers of %q: the name is not 1 to 6 of a-z and 0-9", cfg.Name)
	}
	if cfg.Run == "" {
		cfg.Run = filepath.Join("/run/leasehold", cfg.Name)
	}
	if cfg.Slots == 0 {
		cfg.Slots = maxSlots
	}
	if cfg.Unpacked == "" {
		cfg.Unpacked = filepath.Join(cfg.Dir, "images")
	}
	var err error
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	cfg.Runtime, cfg.Init = absolute(cfg.Runtime), absolute(cfg.Init)
	if err := errors.Join(able(cfg), os.MkdirAll(filepath.Join(cfg.Dir, "places"), 0o700), os.MkdirAll(cfg.Run, 0o711)); err != nil { //nolint:gosec // containers' roots pass through
		return nil, fmt.Errorf("this machine cannot hold containers: %w", err)
	}
	mine, err := claimUsers(cfg.Run, cfg.Dir, cfg.Slots)
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	d := &Driver{
		cfg: cfg, users: mine, oci: oci{path: cfg.Runtime, root: filepath.Join(cfg.Run, "oci")}, locks: map[int]*sync.Mutex{},
		images: images{dir: cfg.Images, unpacked: cfg.Unpacked, maxBytes: maxImageBytes},
	}
	if err := d.rehearse(ctx); err != nil {
		return nil, fmt.Errorf("this machine cannot hold containers: %w", err)
	}
	return d, nil
}

// rehearse does once what every container needs and a process that itself is confined may not do, so that it is known before a lease is sold.
func (d *Driver) rehearse(ctx context.Context) error {
	err := privately(func() error {
		if err := unix.Mount("tmpfs", d.cfg.Run, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return nil
	})
	users, inNamespace := d.userNamespace(ctx, place{})
	if inNamespace == nil {
		inNamespace = users.Close()
	}
	loop, attaching := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if attaching == nil {
		attaching = loop.Close()
	}
	mounts, grouping := cgroupMounts()
	for _, mount := range mounts {
		grouping = errors.Join(grouping, os.MkdirAll(filepath.Join(mount, "leasehold"), 0o755)) //nolint:gosec // as control groups are
	}
	return errors.Join(err, inNamespace, attaching, grouping)
}

// absolute finds a program by its name, and leaves what it cannot find for able to say.
func absolute(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			return path
		}
	}
	return program
}

// able says what this machine lacks.
func able(cfg Config) error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("it takes root"))
	}
	for _, program := range []string{cfg.Runtime, cfg.Init, "mkfs.ext4"} {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("program %q: %w", program, err))
		}
	}
	for _, path := range []string{"/dev/loop-control", "/proc/self/ns/user", "/proc/self/ns/net", "/proc/self/ns/cgroup"} {
		if !exists(path) {
			errs = append(errs, fmt.Errorf("the kernel has no %s", path))
		}
	}
	_, err := cgroupMounts()
	return errors.Join(append(errs, err)...)
}

// place is what is kept of a lease's place on this machine.
type place struct {
	Name     string         `json:"name"` // the tenancy's
	Lease    string         `json:"lease"`
	Slots    protocol.Slots `json:"slots"`
	Hostname string         `json:"hostname"`
	Image    string         `json:"image"`   // digest
	Devices  []string       `json:"devices"` // CDI names
	Nodes    []string       `json:"nodes"`   // of adapters
	Limits   Limits         `json:"limits"`
	UserData string         `json:"user_data,omitempty"`
	Entered  bool           `json:"entered"` // somebody may have been in it
	Open     bool           `json:"open"`    // somebody may be
}

// Users returns the first user of the place that begins at a slot. Its others follow.
func (d *Driver) Users(slot int) uint32 { return d.uidOf(place{Slots: protocol.Slots{From: slot}}) }

func (d *Driver) dirOf(first int) string {
	return filepath.Join(d.cfg.Dir, "places", fmt.Sprintf("%03d", first))
}

func (d *Driver) recordOf(first int) string { return filepath.Join(d.dirOf(first), "place.json") }
func (d *Driver) scratchOf(p place) string {
	return filepath.Join(d.dirOf(p.Slots.From), "scratch.img")
}
func (d *Driver) bundleOf(p place) string { return filepath.Join(d.dirOf(p.Slots.From), "bundle") }
func (d *Driver) id(p place) string       { return fmt.Sprintf("%s-%03d", d.cfg.Name, p.Slots.From) }
func (d *Driver) groupOf(p place) string  { return "/leasehold/" + d.cfg.Name + "/" + d.id(p) }
func (d *Driver) uidOf(p place) uint32    { return d.users.First + uint32(p.Slots.From)*uidsPerPlace } //nolint:gosec // slots are few

func (d *Driver) keep(p place) error { return durable.WriteJSON(d.recordOf(p.Slots.From), p, 0o600) }

// known reads what is kept of the place that begins at a slot.
func (d *Driver) known(first int) (place, bool, error) {
	var p place
	found, err := durable.ReadJSON(d.recordOf(first), &p)
	return p, found, err
}

// lock takes a place for one thing to be done to it.
func (d *Driver) lock(first int) func() {
	d.mu.Lock()
	if d.locks[first] == nil {
		d.locks[first] = &sync.Mutex{}
	}
	l := d.locks[first]
	d.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// Prepare implements node.Runtime.
func (d *Driver) Prepare(ctx context.Context, t node.Tenancy, spec protocol.PrepareSpec, step func(percent int, phase string)) (string, error) {
	if t.Mode == "bare_metal" {
		return "", &operation.Refusal{Code: node.CodeUnsupported, Detail: "this host is shared out in containers and is not leased as a whole"}
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$`).MatchString(t.Hostname) {
		return "", &operation.Refusal{Code: protocol.FaultInvalidSpec, Detail: fmt.Sprintf("%q is no host name", t.Hostname)}
	}
	step(10, "image")
	digest, err := d.image(ctx, spec.Image)
	if err != nil {
		return "", err
	}
	defer d.lock(t.Slots.From)()
	step(50, "limits")
	p, err := d.plan(ctx, t, digest)
	if err != nil {
		return "", err
	}
	p.UserData = spec.UserData
	if err := d.makeWay(ctx, p); err != nil {
		return "", err
	}
	if err := d.keep(p); err != nil {
		return "", fmt.Errorf("keep place: %w", err)
	}
	d.passed(p, "place kept")
	step(60, "scratch")
	if err := makeScratch(ctx, d.scratchOf(p), p.Limits.ScratchBytes); err != nil {
		return "", err
	}
	d.passed(p, "disk made")
	step(80, "container")
	return digest, d.ensure(ctx, p)
}

// CodeNoImage is the refusal of an image that this host lacks, or whose file here is damaged. Another host may have it.
const CodeNoImage = "image-not-there"

// image readies an image and returns its digest.
func (d *Driver) image(ctx context.Context, name string) (string, error) {
	digest, _, err := d.images.ready(ctx, name)
	switch {
	case errors.Is(err, ErrImageName):
		return "", &operation.Refusal{Code: protocol.FaultInvalidSpec, Detail: err.Error()}
	case errors.Is(err, ErrNoImage):
		return "", &operation.Refusal{Code: CodeNoImage, Detail: err.Error()}
	default:
		return digest, err
	}
}

// plan says what the tenancy's place is to be.
func (d *Driver) plan(ctx context.Context, t node.Tenancy, digest string) (place, error) {
	p := place{Name: t.Place(), Lease: t.LeaseID, Slots: t.Slots, Hostname: t.Hostname, Image: digest}
	machine, err := d.cfg.Machine(ctx)
	if err != nil {
		return p, err
	}
	if t.Slots.To > d.cfg.Slots {
		return p, fmt.Errorf("slots [%d, %d) are more than this machine's %d", t.Slots.From, t.Slots.To, d.cfg.Slots)
	}
	if p.Limits, err = machine.ShareOf(t.Slots); err != nil {
		return p, err
	}
	if err := d.refreshCDI(ctx); err != nil {
		return p, err
	}
	if p.Devices, err = d.devicesOf(ctx, t); err != nil {
		return p, err
	}
	if len(t.Ports) > 0 && d.cfg.Adapters != nil {
		if p.Nodes, err = d.cfg.Adapters(ctx, t.Ports); err != nil {
			return p, fmt.Errorf("find adapters: %w", err)
		}
	}
	return p, nil
}

// makeWay readies the directory. What an earlier try of the same tenancy left goes, unless somebody has been in it; what is another's stays, and is
// in the way.
func (d *Driver) makeWay(ctx context.Context, p place) error {
	before, found, err := d.known(p.Slots.From)
	if err != nil {
		return err
	}
	switch {
	case found && before.Name != p.Name:
		return &operation.Refusal{Code: node.CodeNotWiped, Detail: fmt.Sprintf("the place of lease %s on slots [%d, %d) is still there", before.Lease, before.Slots.From, before.Slots.To)}
	case found && before.Entered:
		return nil
	}
	if err := d.end(ctx, p); err != nil {
		return err
	}
	if err := os.RemoveAll(d.dirOf(p.Slots.From)); err != nil {
		return fmt.Errorf("make way: %w", err)
	}
	if err := os.MkdirAll(d.dirOf(p.Slots.From), 0o700); err != nil {
		return fmt.Errorf("make way: %w", err)
	}
	return durable.SyncDir(filepath.Join(d.cfg.Dir, "places"))
}

// Enter implements node.Runtime.
func (d *Driver) Enter(ctx context.Context, t node.Tenancy) error {
	defer d.lock(t.Slots.From)()
	p, found, err := d.known(t.Slots.From)
	if err != nil {
		return err
	}
	if !found || p.Name != t.Place() {
		return &operation.Refusal{Code: node.CodeNotPrepared, Detail: "the place's container is not there any more"}
	}
	first := !p.Entered
	p.Entered, p.Open = true, true
	if err := d.keep(p); err != nil {
		return fmt.Errorf("keep place: %w", err)
	}
	if err := d.ensure(ctx, p); err != nil {
		return err
	}
	if first {
		return d.runUserData(ctx, p)
	}
	return nil
}

// Leave implements node.Runtime: nothing of the tenant runs any more. What it wrote stays until it is wiped.
func (d *Driver) Leave(ctx context.Context, t node.Tenancy) (int, error) {
	defer d.lock(t.Slots.From)()
	p, found, err := d.known(t.Slots.From)
	if err != nil || !found || p.Name != t.Place() {
		return 0, err
	}
	if p.Open {
		p.Open = false
		if err := d.keep(p); err != nil {
			return 0, fmt.Errorf("keep place: %w", err)
		}
	}
	running, err := processesIn(d.groupOf(p))
	if err != nil {
		return 0, err
	}
	return max(len(running)-1, 0), d.end(ctx, p) // less the first, which is ours
}

// Restore brings the containers of places that are open back, e.g. after the machine was started anew. It goes on when one fails and returns what
// went wrong.
func (d *Driver) Restore(ctx context.Context) error {
	var errs []error
	firsts, err := d.places()
	if err != nil {
		return err
	}
	for _, first := range firsts {
		errs = append(errs, d.restore(ctx, first))
	}
	return errors.Join(errs...)
}

func (d *Driver) restore(ctx context.Context, first int) error {
	defer d.lock(first)()
	p, found, err := d.known(first)
	if err != nil || !found || !p.Open {
		return err
	}
	if err := d.ensure(ctx, p); err != nil {
		return fmt.Errorf("restore the place of lease %s: %w", p.Lease, err)
	}
	return nil
}

// Halt ends what runs in all places, as when the machine is switched off. What is written and who may be in stays, for Restore.
func (d *Driver) Halt(ctx context.Context) error {
	firsts, err := d.places()
	if err != nil {
		return err
	}
	var errs []error
	for _, first := range firsts {
		errs = append(errs, d.halt(ctx, first))
	}
	return errors.Join(errs...)
}

func (d *Driver) halt(ctx context.Context, first int) error {
	defer d.lock(first)()
	p, found, err := d.known(first)
	if err != nil || !found {
		return err
	}
	return d.end(ctx, p)
}

// places lists the first slots of what is kept, also of what was only begun.
func (d *Driver) places() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(d.cfg.Dir, "places"))
	if err != nil {
		return nil, fmt.Errorf("list places: %w", err)
	}
	var firsts []int
	for _, e := range entries {
		var first int
		if _, err := fmt.Sscanf(e.Name(), "%d", &first); err == nil {
			firsts = append(firsts, first)
		}
	}
	return firsts, nil
}
