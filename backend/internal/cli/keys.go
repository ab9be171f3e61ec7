package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

// httpResponse keeps net/http out of the signatures of commands that only hand it on.
type httpResponse = http.Response

func keysCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "keys", Short: "Manage SSH keys and API keys"}
	add := &cobra.Command{Use: "add", Short: "Add a key"}
	add.AddCommand(addSSHKeyCommand(o), addAPIKeyCommand(o))
	command.AddCommand(add, listKeysCommand(o), removeKeyCommand(o))
	return command
}

func sshKeys(ctx context.Context, c *connection) ([]client.SSHKey, error) {
	var all []client.SSHKey
	err := pages(func(cursor *string) (*client.SSHKeyList, *httpResponse, error) {
		answer, err := c.ListSSHKeysWithResponse(ctx, &client.ListSSHKeysParams{Cursor: cursor})
		if err != nil {
			return nil, nil, unreachable(c.server, err)
		}
		page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		return page, answer.HTTPResponse, err
	}, func(page *client.SSHKeyList) { all = append(all, page.Items...) })
	return all, err
}

func listKeysCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List keys",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			ssh, err := sshKeys(ctx, c)
			if err != nil {
				return err
			}
			answer, err := c.ListAPIKeysWithResponse(ctx, nil)
			if err != nil {
				return unreachable(c.server, err)
			}
			api, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(map[string]any{"ssh_keys": ssh, "api_keys": api.Items}, func(w io.Writer) {
				row(w, "KEY", "KIND", "NAME", "WHAT")
				for _, k := range ssh {
					row(w, k.ID, "ssh", k.Name, k.Fingerprint)
				}
				for _, k := range api.Items {
					row(w, k.ID, "api", k.Name, scopesOf(k))
				}
			})
		}),
	}
}

func scopesOf(k client.APIKey) string {
	texts := make([]string, len(k.Scopes))
	for i, s := range k.Scopes {
		texts[i] = string(s)
	}
	text := strings.Join(texts, ",")
	if k.RevokedAt != nil {
		text += " (revoked)"
	}
	return text
}

func addSSHKeyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "ssh NAME FILE",
		Short: "Add the public key in FILE, e.g. ~/.ssh/id_ed25519.pub",
		Args:  cobra.ExactArgs(2),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			raw, err := os.ReadFile(args[1])
			if err != nil {
				return fmt.Errorf("read public key: %w", err)
			}
			answer, err := c.CreateSSHKeyWithResponse(ctx, &client.CreateSSHKeyParams{IdempotencyKey: fresh()},
				client.SSHKeyCreate{Name: args[0], PublicKey: strings.TrimSpace(string(raw))})
			if err != nil {
				return unreachable(c.server, err)
			}
			key, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(key, func(w io.Writer) { row(w, key.ID, key.Name, key.Fingerprint) })
		}),
	}
}

func addAPIKeyCommand(o *options) *cobra.Command {
	var scopes []string
	command := &cobra.Command{
		Use:   "api NAME",
		Short: "Make an API key; it is shown once",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			wanted := make([]client.Scope, len(scopes))
			for i, s := range scopes {
				wanted[i] = client.Scope(s)
			}
			answer, err := c.CreateAPIKeyWithResponse(ctx, &client.CreateAPIKeyParams{IdempotencyKey: fresh()}, client.APIKeyCreate{Name: args[0], Scopes: wanted})
			if err != nil {
				return unreachable(c.server, err)
			}
			key, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(key, func(w io.Writer) {
				row(w, "Key", key.ID)
				row(w, "Secret", or(key.Secret, ""))
				row(w, "", "It is not shown again. Scripts take it from $"+envAPIKey+".")
			})
		}),
	}
	command.Flags().StringSliceVar(&scopes, "scope", []string{"market:read", "leases:read", "leases:write"}, "what the key may do")
	return command
}

func removeKeyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "remove KEY",
		Short: "Remove an SSH key or revoke an API key, by id",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, _ printer, args []string) error {
			if strings.HasPrefix(args[0], "sshkey_") {
				answer, err := c.DeleteSSHKeyWithResponse(ctx, args[0], &client.DeleteSSHKeyParams{IdempotencyKey: fresh()})
				if err != nil {
					return unreachable(c.server, err)
				}
				return done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			}
			answer, err := c.DeleteAPIKeyWithResponse(ctx, args[0], &client.DeleteAPIKeyParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			return done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		}),
	}
}

// compact renders an event's data on one line.
func compact(data map[string]any) string {
	if len(data) == 0 {
		return ""
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Sprint(data)
	}
	return string(raw)
}
