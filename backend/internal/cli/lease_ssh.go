package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func leaseSSHCommand(o *options) *cobra.Command {
	var node, identity string
	command := &cobra.Command{
		Use:   "ssh LEASE [-- COMMAND…]",
		Short: "Log in to a node of the lease",
		Long:  "Log in to a node of the lease with the system's ssh. The node's host keys come from the lease, so a stranger in between is noticed.",
		Args:  cobra.MinimumNArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, _ printer, args []string) error {
			nodes, err := leaseNodes(ctx, c, args[0])
			if err != nil {
				return err
			}
			for _, n := range nodes.Items {
				if n.Access != nil && (node == "" || node == n.Node) {
					return runSSH(ctx, n.Access, identity, args[1:])
				}
			}
			which := "no node of this lease"
			if node != "" {
				which = fmt.Sprintf("no node %q of this lease", node)
			}
			return &Problem{Status: http.StatusNotFound, Title: which + " can be logged in to now; see: leasehold lease show " + args[0]}
		}),
	}
	command.Flags().StringVar(&node, "node", "", "which node (default: the first)")
	command.Flags().StringVarP(&identity, "identity", "i", "", "private key file (default: ssh's own choice)")
	return command
}

func runSSH(ctx context.Context, access *client.Access, identity string, remote []string) error {
	dir, err := os.MkdirTemp("", "leasehold-ssh-")
	if err != nil {
		return fmt.Errorf("make a directory for known hosts: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	args, err := SSHArgs(dir, access, identity)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "ssh", append(args, remote...)...) //nolint:gosec // the user's own command line
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	return nil
}

// SSHArgs writes a known_hosts file with the lease's host keys into dir, and returns ssh's arguments up to the host.
func SSHArgs(dir string, access *client.Access, identity string) ([]string, error) {
	known := filepath.Join(dir, "known_hosts")
	var lines []byte
	for _, key := range access.HostKeys {
		lines = fmt.Appendf(lines, "[%s]:%d %s\n", access.Host, access.Port, key)
	}
	if err := os.WriteFile(known, lines, 0o600); err != nil {
		return nil, fmt.Errorf("write known hosts: %w", err)
	}
	args := []string{"-o", "UserKnownHostsFile=" + known, "-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=/dev/null", "-p", itoa(access.Port)}
	if identity != "" {
		args = append(args, "-i", identity, "-o", "IdentitiesOnly=yes")
	}
	return append(args, access.User+"@"+access.Host), nil
}
