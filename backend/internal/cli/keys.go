package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

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
	all := []client.SSHKey{}
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

func apiKeys(ctx context.Context, c *connection) ([]client.APIKey, error) {
	all := []client.APIKey{}
	err := pages(func(cursor *string) (*client.APIKeyList, *httpResponse, error) {
		answer, err := c.ListAPIKeysWithResponse(ctx, &client.ListAPIKeysParams{Cursor: cursor})
		if err != nil {
			return nil, nil, unreachable(c.server, err)
		}
		page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		return page, answer.HTTPResponse, err
	}, func(page *client.APIKeyList) { all = append(all, page.Items...) })
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
			api, err := apiKeys(ctx, c)
			if err != nil {
				return err
			}
			return p.list(map[string]any{"ssh_keys": ssh, "api_keys": api}, func(w io.Writer) { describeKeys(w, ssh, api) })
		}),
	}
}

func describeKeys(w io.Writer, ssh []client.SSHKey, api []client.APIKey) {
	if len(ssh)+len(api) == 0 {
		row(w, "No keys yet. Add one: "+addKeyHint)
		return
	}
	row(w, "KEY", "KIND", "NAME", "EXPIRES", "WHAT")
	for _, k := range ssh {
		row(w, k.ID, "ssh", k.Name, "–", k.Fingerprint)
	}
	for _, k := range api {
		row(w, k.ID, "api", k.Name, expiryOf(k), scopesOf(k))
	}
}

const addKeyHint = "leasehold keys add ssh NAME ~/.ssh/id_ed25519.pub"

func expiryOf(k client.APIKey) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt == nil:
		return "never"
	default:
		return instant(*k.ExpiresAt)
	}
}

func scopesOf(k client.APIKey) string {
	texts := make([]string, len(k.Scopes))
	for i, s := range k.Scopes {
		texts[i] = string(s)
	}
	return strings.Join(texts, ",")
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
			return p.show(key, func(w io.Writer) {
				row(w, "Key", key.ID)
				row(w, "Name", key.Name)
				row(w, "Fingerprint", key.Fingerprint)
			})
		}),
	}
}

func addAPIKeyCommand(o *options) *cobra.Command {
	var scopes []string
	var ttl span
	command := &cobra.Command{
		Use:   "api NAME",
		Short: "Make an API key; it is shown once",
		Long: "Make an API key for a program, e.g.: leasehold keys add api ci --scope leases:read --expires 30d\n" +
			"It acts for you, within its scopes. It is shown once; scripts take it from $" + envAPIKey + ".",
		Args: cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			wanted := make([]client.Scope, len(scopes))
			for i, s := range scopes {
				wanted[i] = client.Scope(s)
			}
			wish := client.APIKeyCreate{Name: args[0], Scopes: wanted}
			if ttl != 0 {
				expires := time.Now().Add(time.Duration(ttl)).UTC()
				wish.ExpiresAt = &expires
			}
			answer, err := c.CreateAPIKeyWithResponse(ctx, &client.CreateAPIKeyParams{IdempotencyKey: fresh()}, wish)
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
				row(w, "Scopes", scopesOf(*key))
				row(w, "Expires", expiryOf(*key))
			})
		}),
	}
	// identity:read, since booking looks up your SSH keys by name.
	command.Flags().StringSliceVar(&scopes, "scope", []string{"market:read", "leases:read", "leases:write", "identity:read"},
		"what the key may do: area:read or area:write, of market, leases, billing, identity and admin")
	command.Flags().Var(&ttl, "expires", "how long the key lives, e.g. 30d (default: until it is revoked)")
	return command
}

func removeKeyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "remove KEY",
		Short: "Remove an SSH key or revoke an API key, by id",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			switch {
			case strings.HasPrefix(args[0], "sshkey_"):
				if err := removeSSHKey(ctx, c, args[0]); err != nil {
					return err
				}
				return p.done("removed", args[0], "Removed. Running leases keep the keys that they were booked with.")
			case strings.HasPrefix(args[0], "key_"):
				if err := revokeAPIKey(ctx, c, args[0]); err != nil {
					return err
				}
				return p.done("revoked", args[0], "Revoked. Programs that use it are refused from now on.")
			default:
				return usagef("%q is not the id of a key, which begins with sshkey_ or key_; see: leasehold keys list", args[0])
			}
		}),
	}
}

func removeSSHKey(ctx context.Context, c *connection, id string) error {
	answer, err := c.DeleteSSHKeyWithResponse(ctx, id, &client.DeleteSSHKeyParams{IdempotencyKey: fresh()})
	if err != nil {
		return unreachable(c.server, err)
	}
	return done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}

func revokeAPIKey(ctx context.Context, c *connection, id string) error {
	answer, err := c.DeleteAPIKeyWithResponse(ctx, id, &client.DeleteAPIKeyParams{IdempotencyKey: fresh()})
	if err != nil {
		return unreachable(c.server, err)
	}
	return done(http.StatusNoContent, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}
