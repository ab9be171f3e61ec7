package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/internal/cli"
)

// logInToNodes runs the system's ssh with the customer's key on every node, and compares the GPUs seen there with those leased.
func (d *demo) logInToNodes(ctx context.Context) (string, error) {
	for _, n := range d.nodes {
		if n.Access == nil {
			return "", fmt.Errorf("node %s has no access", n.Node)
		}
		listed, err := d.ssh(ctx, n.Access, d.key, "nvidia-smi", "-L")
		if err != nil {
			return "", fmt.Errorf("log in to %s: %w", n.Node, err)
		}
		for _, gpu := range n.Gpus {
			if !strings.Contains(listed, gpu.UUID) {
				return "", fmt.Errorf("node %s does not show leased GPU %s but:\n%s", n.Node, gpu.UUID, listed)
			}
		}
	}
	host, err := d.ssh(ctx, d.nodes[0].Access, d.key, "hostname")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: hostname is %s, all %d leased GPUs are there on each of %d nodes",
		d.nodes[0].Access.Command, strings.TrimSpace(host), len(d.nodes[0].Gpus), len(d.nodes)), nil
}

// ssh runs one command on a node with the system's ssh client, checking the host key that the lease gives.
func (d *demo) ssh(ctx context.Context, access *client.Access, key string, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	args, err := cli.SSHArgs(d.dir, access, key)
	if err != nil {
		return "", err
	}
	args = append([]string{"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"}, args...)
	run := exec.CommandContext(ctx, "ssh", append(args, command...)...) //nolint:gosec // arguments of our own making
	var out, errs bytes.Buffer
	run.Stdout, run.Stderr = &out, &errs
	if err := run.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (d *demo) refuseStranger(ctx context.Context) (string, error) {
	_, stranger, err := makeKey(d.dir, "stranger")
	if err != nil {
		return "", err
	}
	return d.mustRefuse(ctx, stranger)
}

func (d *demo) refuseAfterEnd(ctx context.Context) (string, error) {
	// The lease is releasing; the access ends with its first step. Wait for the log to say so.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for d.lease.ReleasedAt == nil {
		answer, err := d.api.GetLeaseWithResponse(ctx, d.lease.ID, &client.GetLeaseParams{Wait: new("5s"), AfterEvent: &d.lease.LastEvent})
		if err != nil {
			return "", err
		}
		if d.lease, err = got(answer.JSON200, answer.HTTPResponse, answer.Body, nil); err != nil {
			return "", err
		}
	}
	return d.mustRefuse(ctx, d.key)
}

// mustRefuse checks on every node that the key cannot log in, for the right reason: ssh's own failure (255), not a command's.
func (d *demo) mustRefuse(ctx context.Context, key string) (string, error) {
	said := ""
	for _, n := range d.nodes {
		_, err := d.ssh(ctx, n.Access, key, "hostname")
		if err == nil {
			return "", fmt.Errorf("node %s let it in", n.Node)
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 255 {
			return "", fmt.Errorf("node %s: %w", n.Node, err)
		}
		said = lastLine(err.Error())
	}
	return fmt.Sprintf("on all %d nodes: %s", len(d.nodes), said), nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// readMetrics waits for the first samples, which come with the agents' heartbeats.
func (d *demo) readMetrics(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := d.api.GetLeaseMetricsWithResponse(ctx, d.lease.ID, nil)
		if err != nil {
			return "", err
		}
		metrics, err := got(answer.JSON200, answer.HTTPResponse, answer.Body, nil)
		if err != nil {
			return "", err
		}
		if said := describe(metrics); said != "" {
			return said, nil
		}
		select {
		case <-ctx.Done():
			return "", errors.New("no samples came")
		case <-tick.C:
		}
	}
}

func describe(metrics *client.LeaseMetrics) string {
	names := map[string]bool{}
	points, sample := 0, ""
	for _, s := range metrics.Series {
		names[s.Metric] = true
		points += len(s.Points)
		if s.Metric == "gpu_power_watts" && len(s.Points) > 0 {
			sample = fmt.Sprintf(", e.g. %s draws %.0f W", s.Device, s.Points[len(s.Points)-1].Value)
		}
	}
	if points == 0 {
		return ""
	}
	return fmt.Sprintf("%d samples of %d meters%s", points, len(names), sample)
}
