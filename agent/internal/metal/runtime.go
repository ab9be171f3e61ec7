// Package metal holds a tenant on the bare machine. It runs in the service OS, which is booted from the network before and after a lease:
// it writes the tenant's image to the boot disk, gives it a seed, and afterwards has every disk erase itself. While the tenant's own system
// runs there is no agent at all.
package metal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/internal/imaging"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/nvme"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Codes of refusals.
const (
	CodeNoImage       = "no-image"            // the order names no image to write
	CodeNoDisk        = "no-disk"             // the machine has no disk for it
	CodeImageTooLarge = "image-too-large"     // for every disk of this machine
	CodeImageChecksum = "image-checksum"      // its bytes are not those that were registered
	CodeImageFormat   = "image-format"        // it is not what it is said to be
	CodeSeed          = "user-data-not-valid" // the seed cannot be made
)

// Runtime is the machine. It implements node.Runtime.
type Runtime struct {
	// Root is "/"; a test has its own tree.
	Root    string
	WorkDir string
	Images  imaging.Writer
	Now     func() time.Time
}

var _ node.Runtime = (*Runtime)(nil)

// disk is a block device that a tenant could write to.
type disk struct {
	name  string
	bytes int64
}

const sectorBytes = 512

// disks lists them, the boot disk first: the smallest, since machines have small drives for their system and large ones for data.
func (r *Runtime) disks() ([]disk, error) {
	entries, err := os.ReadDir(filepath.Join(r.Root, "sys/block"))
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var found []disk
	for _, e := range entries {
		dir := filepath.Join(r.Root, "sys/block", e.Name())
		if _, err := os.Stat(filepath.Join(dir, "device")); err != nil || r.text(dir, "removable") == "1" || r.text(dir, "hidden") == "1" {
			continue
		}
		sectors, err := strconv.ParseInt(r.text(dir, "size"), 10, 64)
		if err != nil || sectors <= 0 {
			continue
		}
		found = append(found, disk{e.Name(), sectors * sectorBytes})
	}
	slices.SortFunc(found, func(a, b disk) int { return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.name, b.name)) })
	return found, nil
}

func (r *Runtime) text(elements ...string) string {
	data, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// bootDisk is the one that images go to.
func (r *Runtime) bootDisk() (*imaging.Device, error) {
	disks, err := r.disks()
	if err != nil {
		return nil, err
	}
	if len(disks) == 0 {
		return nil, refuse(CodeNoDisk, "the machine has no disk")
	}
	return imaging.OpenDevice(filepath.Join(r.Root, "dev", disks[0].name))
}

// Prepare implements node.Runtime: the image goes onto the boot disk.
func (r *Runtime) Prepare(ctx context.Context, _ node.Tenancy, spec protocol.PrepareSpec, step func(int, string)) (digest string, err error) { //nolint:nonamedreturns // closing may fail too
	if spec.Source == nil {
		return "", refuse(CodeNoImage, "the order says nothing of where image %q is", spec.Image)
	}
	device, err := r.bootDisk()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	source := imaging.Source{URL: spec.Source.URL, Format: imaging.Format(spec.Source.Format), SHA256: spec.Source.SHA256, SizeBytes: spec.Source.SizeBytes}
	digest, err = r.Images.Write(ctx, source, device, tell(step))
	return digest, asRefusal(err)
}

// Progress of imaging, in percent of the whole preparation.
const imagingFrom, imagingTo = 10, 95

// tell passes on each whole percent once.
func tell(step func(int, string)) func(float64) {
	last := -1
	return func(done float64) {
		if percent := imagingFrom + int(done*(imagingTo-imagingFrom)); percent != last {
			last = percent
			step(percent, "imaging")
		}
	}
}

// asRefusal names what the same order would meet again.
func asRefusal(err error) error {
	for cause, code := range map[error]string{
		imaging.ErrTooLarge: CodeImageTooLarge, imaging.ErrChecksum: CodeImageChecksum, imaging.ErrFormat: CodeImageFormat, imaging.ErrSeed: CodeSeed,
	} {
		if errors.Is(err, cause) {
			return refuse(code, "%v", err)
		}
	}
	return err
}

func refuse(code, format string, args ...any) error {
	return &operation.Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Enter implements node.Runtime: the machine's power does that.
func (r *Runtime) Enter(context.Context, node.Tenancy) error { return nil }

// Leave implements node.Runtime: nothing of a tenant runs in the service OS.
func (r *Runtime) Leave(context.Context, node.Tenancy) (int, error) { return 0, nil }

// Wipe implements node.Runtime: every disk of the machine, whichever the image went to: it was all the tenant's.
func (r *Runtime) Wipe(ctx context.Context, _ node.Tenancy, step func(int, string)) ([]protocol.DeviceWipe, error) {
	drives, err := nvme.List(r.Root)
	if err != nil {
		return nil, err
	}
	disks, err := r.disks()
	if err != nil {
		return nil, err
	}
	rows := []protocol.DeviceWipe{}
	for i, d := range drives {
		step(imagingFrom+50*i/len(drives), "disk "+d.Name())
		rows = append(rows, nvme.Wipe(ctx, d, d.Name(), r.Now))
	}
	for _, d := range disks {
		if !isNVMe(d.name) {
			rows = append(rows, r.unsupported(d))
		}
	}
	return rows, nil
}

func isNVMe(name string) bool { return regexp.MustCompile(`^nvme\d+`).MatchString(name) }

// unsupported is a disk of a kind that this release cannot have erase itself. It is not clean, and not failed either.
func (r *Runtime) unsupported(d disk) protocol.DeviceWipe {
	now := r.Now()
	return protocol.DeviceWipe{
		Kind: "disk", Identity: cmp.Or(r.text(r.Root, "sys/block", d.name, "device/serial"), d.name), Capability: "unknown", Method: "none",
		Status: protocol.WipeUnsupported, Detail: "only NVMe drives are erased by this release", StartedAt: now, FinishedAt: now,
	}
}
