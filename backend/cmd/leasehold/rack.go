package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/app"
	"github.com/leasehold/leasehold/backend/image"
	"github.com/leasehold/leasehold/backend/internal/demo"
	"github.com/leasehold/leasehold/backend/internal/local"
)

// hostOfGuests is this machine's loopback interface as QEMU's user-mode network shows it to its guests.
const hostOfGuests = "10.0.2.2"

// guestsURL is the API's address for virtual machines.
func (d doors) guestsURL() (string, error) {
	address, err := url.Parse(d.agentsURL())
	if err != nil {
		return "", fmt.Errorf("read own address: %w", err)
	}
	return "http://" + hostOfGuests + ":" + address.Port(), nil
}

// rackDirs are where `make demo NODES=qemu` puts what virtual bare metal boots.
func rackDirs() (serviceOS, images, debian string, err error) {
	cache, err := local.CacheDir()
	if err != nil {
		return "", "", "", err
	}
	serviceOS, images, debian = filepath.Join(cache, "service-os"), filepath.Join(cache, "images"), filepath.Join(cache, "debian")
	for _, needed := range []string{filepath.Join(serviceOS, "vmlinuz"), filepath.Join(images, app.DemoImage+".raw")} {
		if _, err := os.Stat(needed); err != nil {
			return "", "", "", fmt.Errorf("what virtual machines boot is not built (tools/metal does that, as root): %w", err)
		}
	}
	return serviceOS, images, debian, nil
}

// useRack makes the API serve what the rack's machines boot.
func (i *instance) useRack(config *app.Config) error {
	var err error
	if config.ServiceOSDir, config.ImagesDir, _, err = rackDirs(); err != nil {
		return err
	}
	config.NodesURL, err = i.doors.guestsURL()
	return err
}

// startRack starts virtual machines with a BMC each, hands them over, and waits until they are for rent.
func (i *instance) startRack(ctx context.Context, o devOptions, a *app.App, say func(string)) error {
	_, images, debian, err := rackDirs()
	if err != nil {
		return err
	}
	guests, err := i.doors.guestsURL()
	if err != nil {
		return err
	}
	img, err := demoImage(images, guests)
	if err != nil {
		return err
	}
	program, err := builtProgram("virtualsite")
	if err != nil {
		return err
	}
	state := filepath.Join(o.dataDir, "rack")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make the rack's directory: %w", err)
	}
	list := filepath.Join(state, "machines.json")
	if err := os.Remove(list); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the rack's old list: %w", err)
	}
	process, err := local.Start(ctx, local.Spec{Name: "virtual machines", Path: program, LogFile: filepath.Join(o.dataDir, "rack.log"), Args: []string{
		"--state-dir", state, "--boot-file", guests + "/netboot/v1/boot.ipxe", "--accel", o.accel, "--tool-dir", debian, "--machines", strconv.Itoa(o.machines),
	}})
	if err != nil {
		return fmt.Errorf("start virtual machines: %w", err)
	}
	i.children.AddProcess(process)
	rack, err := i.awaitHandover(ctx, list)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := a.SeedRack(ctx, img, rack); err != nil {
		return fmt.Errorf("hand the rack over: %w", err)
	}
	say(fmt.Sprintf("the rack stands: %d machines with a BMC each, and they boot the service OS", len(rack)))
	standing, err := i.awaitRack(ctx, a, began)
	if err != nil {
		return err
	}
	line := "the rack runs: " + strconv.Itoa(standing.ForRent) + " machines are for rent"
	if len(standing.OffSale) > 0 {
		line += "; " + strings.Join(standing.OffSale, ", ")
	}
	if standing.Awaited > 0 {
		line += fmt.Sprintf("; %d are not there after %s (see rack.log and rack/*/console.log)", standing.Awaited, rackWithin)
	}
	say(line)
	return nil
}

// builtProgram is a program beside this one.
func builtProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("%s is not built: run `make demo NODES=qemu`: %w", name, err)
	}
	return program, nil
}

// demoImage describes the demonstration's image, which the API itself serves.
func demoImage(dir, guests string) (image.Image, error) {
	name := app.DemoImage + ".raw"
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return image.Image{}, fmt.Errorf("open image: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return image.Image{}, fmt.Errorf("read image: %w", err)
	}
	return image.Image{
		Name: app.DemoImage, URL: guests + "/netboot/v1/images/" + name, Format: "raw", SHA256: hex.EncodeToString(sum.Sum(nil)), SizeBytes: size,
	}, nil
}

func (i *instance) awaitHandover(ctx context.Context, list string) ([]app.Handover, error) {
	ctx, cancel := context.WithTimeout(ctx, siteWithin)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(list)
		if err == nil {
			var rack []app.Handover
			if err := json.Unmarshal(data, &rack); err == nil {
				return rack, nil
			}
		}
		select {
		case <-tick.C:
		case err := <-i.children.Failed():
			return nil, err
		case <-ctx.Done():
			return nil, errors.New("the virtual machines are not there (see rack.log)")
		}
	}
}

// onMetal has the demonstration lease what the rack has, for long enough to boot; flags that were set stay.
func onMetal(cmd *cobra.Command, options *demo.Options) {
	options.Metal = true
	for name, set := range map[string]func(){
		"type":      func() { options.InstanceType = app.DemoMetal },
		"instances": func() { options.Instances = 1 },
		"duration":  func() { options.Duration = metalDuration },
	} {
		if !cmd.Flags().Changed(name) {
			set()
		}
	}
}

// metalDuration is how long the demonstration leases a machine that boots: emulated on a busy machine, that takes minutes, twice.
const metalDuration = 8 * time.Minute

// rackDisks lists the virtual drives of the rack that runs on the data directory.
func rackDisks(dataDir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dataDir, "rack", "machines.json"))
	if err != nil {
		return nil, fmt.Errorf("the instance has no virtual machines (leasehold dev --nodes=qemu): %w", err)
	}
	var rack []app.Handover
	if err := json.Unmarshal(data, &rack); err != nil {
		return nil, fmt.Errorf("read the rack's list: %w", err)
	}
	disks := make([]string, len(rack))
	for i, h := range rack {
		disks[i] = h.Disk
	}
	return disks, nil
}

// rackWithin bounds how long the machines' first boot is waited for: emulated, it takes most of a minute on a busy machine.
const rackWithin = 5 * time.Minute

func (i *instance) awaitRack(ctx context.Context, a *app.App, began time.Time) (app.SiteStanding, error) {
	return i.awaitSettled(ctx, rackWithin, 500*time.Millisecond, func() (app.SiteStanding, error) { return a.RackStanding(ctx, began) })
}
