package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/client"
)

// metalSteps are the main job on a machine that is leased whole and really boots. Nothing but its BMC and its disk is believed: what the
// tenant wrote is looked for on the virtual drive itself, while they have it and after the wipe.
func metalSteps() []step {
	return []step{
		{"log in", (*demo).logIn},
		{"add an SSH key", (*demo).addKey},
		{"top up the balance", (*demo).topUp},
		{"search", (*demo).search},
		{"quote", (*demo).quote},
		{"book", (*demo).book},
		{"provisioning", (*demo).provision},
		{"isolation", (*demo).checkIsolation},
		{"SSH log-in to the booted image", (*demo).logInToMetal},
		{"a stranger's key is refused", (*demo).refuseStranger},
		{"write a secret to the disk", (*demo).writeSecret},
		{"reboot through the BMC", (*demo).rebootMetal},
		{"extend", (*demo).extend},
		{"end", (*demo).waitForEnd},
		{"SSH refused", (*demo).refuseAfterEnd},
		{"wiped, with certificates", (*demo).checkWipe},
		{"the secret is gone", (*demo).missSecret},
		{"for rent again", (*demo).findForRent},
		{"charge lines, recomputed", (*demo).checkCharges},
		{"draft invoice", (*demo).checkInvoice},
		{"balance", (*demo).checkBalance},
		{"doctor", (*demo).runDoctor},
	}
}

// logInToMetal checks the host key that the machine phoned home with, and that cloud-init made the machine what the lease says.
func (d *demo) logInToMetal(ctx context.Context) (string, error) {
	var said []string
	for _, n := range d.nodes {
		if n.Access == nil {
			return "", fmt.Errorf("node %s has no access", n.Node)
		}
		out, err := d.ssh(ctx, n.Access, d.key, "hostname; cat /run/cloud-init/.ds-identify.result /run/cloud-init/cloud-id; sudo -n id -u; lsblk -dno NAME,MODEL; uname -r")
		if err != nil {
			return "", fmt.Errorf("log in to %s: %w", n.Node, err)
		}
		words := strings.Fields(out)
		if len(words) < 2 || words[0] != n.Node {
			return "", fmt.Errorf("node %s says %q", n.Node, out)
		}
		said = append(said, strings.Join(words, " "))
	}
	return strings.Join(said, "; "), nil
}

// writeSecret writes what nobody could guess into a file, and finds it on the virtual drive: else not finding it later would say nothing.
func (d *demo) writeSecret(ctx context.Context) (string, error) {
	d.secret = "secret-" + rand.Text() + rand.Text()
	for _, n := range d.nodes {
		if _, err := d.ssh(ctx, n.Access, d.key, "echo "+d.secret+" | sudo -n tee /root/secret >/dev/null; sync"); err != nil {
			return "", fmt.Errorf("write on %s: %w", n.Node, err)
		}
	}
	found, err := d.seek(d.secret)
	if err != nil {
		return "", err
	}
	if found != len(d.nodes) {
		return "", fmt.Errorf("it is on %d drives, not on the %d that it was written to", found, len(d.nodes))
	}
	return fmt.Sprintf("found on %d of %d virtual drives, read as files", found, len(d.options.Disks)), nil
}

// rebootMetal has the machine restarted, and logs in to the system that comes up again.
func (d *demo) rebootMetal(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	n := d.nodes[0]
	const bootID = "cat /proc/sys/kernel/random/boot_id"
	before, err := d.ssh(ctx, n.Access, d.key, bootID)
	if err != nil {
		return "", err
	}
	answer, err := d.api.SetLeaseNodePowerWithResponse(ctx, d.lease.ID, n.AllocationID, &client.SetLeaseNodePowerParams{IdempotencyKey: fresh()},
		client.PowerWish{Action: client.PowerWishActionReboot})
	if err != nil {
		return "", err
	}
	if _, err := got(answer.JSON202, answer.HTTPResponse, answer.Body, nil); err != nil {
		return "", err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		after, err := d.ssh(ctx, n.Access, d.key, bootID)
		if err == nil && after != before {
			return "boot " + strings.TrimSpace(after) + " after " + strings.TrimSpace(before), nil
		}
		select {
		case <-ctx.Done():
			return "", errors.New("it does not come up again")
		case <-tick.C:
		}
	}
}

func (d *demo) missSecret(context.Context) (string, error) {
	for _, text := range []string{d.secret, "cidata", "EFI PART"} {
		found, err := d.seek(text)
		if err != nil {
			return "", err
		}
		if found > 0 {
			return "", fmt.Errorf("%q is still on %d drives", text, found)
		}
	}
	return "it is on no virtual drive any more, nor are the seed and the partition table", nil
}

// seek counts the drives that hold the text anywhere.
func (d *demo) seek(text string) (int, error) {
	if len(d.options.Disks) == 0 {
		return 0, errors.New("no virtual drive is known")
	}
	n := 0
	for _, path := range d.options.Disks {
		found, err := contains(path, []byte(text))
		if err != nil {
			return 0, err
		}
		if found {
			n++
		}
	}
	return n, nil
}

func contains(path string, text []byte) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("open virtual drive: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	buffer := make([]byte, 4<<20)
	kept := 0
	for {
		n, err := f.Read(buffer[kept:])
		if bytes.Contains(buffer[:kept+n], text) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read virtual drive: %w", err)
		}
		// The text may lie across two pieces.
		tail := min(len(text)-1, kept+n)
		copy(buffer, buffer[kept+n-tail:kept+n])
		kept = tail
	}
}

// findForRent searches until what was leased can be had again.
func (d *demo) findForRent(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		answer, err := d.api.SearchAvailabilityWithResponse(ctx, client.AvailabilitySearch{
			InstanceType: d.options.InstanceType, Instances: d.options.Instances, DurationSeconds: new(int64(d.options.Duration / time.Second)),
		})
		if err != nil {
			return "", err
		}
		options, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
		if err != nil {
			return "", err
		}
		if len(options.Items) > 0 {
			return fmt.Sprintf("%d machines", options.Items[0].Instances), nil
		}
		select {
		case <-ctx.Done():
			return "", errors.New("it does not come back to the market")
		case <-tick.C:
		}
	}
}
