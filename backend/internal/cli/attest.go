package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/fabric"
)

func attestCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "attest", Short: "Get and verify isolation attestations"}
	command.AddCommand(attestGetCommand(o), attestNowCommand(o), attestVerifyCommand(o))
	return command
}

func attestGetCommand(o *options) *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "get LEASE",
		Short: "Show a lease's partition and attestations; with --file save the newest envelope",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.GetLeaseIsolationWithResponse(ctx, args[0])
			if err != nil {
				return unreachable(c.server, err)
			}
			isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			if file != "" {
				if len(isolation.Attestations) == 0 {
					return &Problem{Status: http.StatusNotFound, Title: "lease " + args[0] + " has no attestation yet"}
				}
				if err := saveEnvelope(file, isolation.Attestations[len(isolation.Attestations)-1].Envelope); err != nil {
					return err
				}
				p.note("Saved to " + file + ". Check it with: leasehold attest verify " + file)
			}
			return p.show(isolation, func(w io.Writer) { describeIsolation(w, isolation) })
		}),
	}
	command.Flags().StringVar(&file, "file", "", "where to save the newest envelope (DSSE, JSON)")
	return command
}

func attestNowCommand(o *options) *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "now LEASE",
		Short: "Have a running lease's isolation proved now, and wait for the verdict; status 8 unless it is isolated",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			answer, err := c.RequestAttestationWithResponse(ctx, args[0], &client.RequestAttestationParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			asked, err := take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			made, err := awaitAttestation(ctx, c, asked)
			if err != nil {
				return err
			}
			if file != "" {
				if err := saveEnvelope(file, made.Envelope); err != nil {
					return err
				}
			}
			if err := p.show(made, func(w io.Writer) { describeAttestation(w, *made) }); err != nil {
				return err
			}
			if made.Verdict != client.AttestationVerdictIsolated {
				return &Unhealthy{Detail: "the verdict is " + string(made.Verdict)}
			}
			return nil
		}),
	}
	command.Flags().StringVar(&file, "file", "", "where to save the envelope (DSSE, JSON)")
	return command
}

// awaitAttestation follows the lease until its log answers the request, and returns the attestation that it names.
func awaitAttestation(ctx context.Context, c *connection, asked *client.AttestationRequest) (*client.Attestation, error) {
	wait, after, limit := "30s", int64(0), 200
	for {
		events, err := c.ListLeaseEventsWithResponse(ctx, asked.LeaseID, &client.ListLeaseEventsParams{After: &after, Limit: &limit})
		if err != nil {
			return nil, unreachable(c.server, err)
		}
		log, err := take(events.JSON200, events.ApplicationProblemJSONDefault, events.HTTPResponse)
		if err != nil {
			return nil, err
		}
		for _, e := range log.Items {
			after = e.Seq
			if e.Type == "isolation.attested" && e.Data["request"] == itoa(asked.Request) {
				id, _ := e.Data["attestation"].(string)
				return attestationOf(ctx, c, asked.LeaseID, id)
			}
			if e.Type == "lease.releasing" {
				return nil, fmt.Errorf("the lease ended before its isolation was proved")
			}
		}
		if len(log.Items) == limit {
			continue
		}
		if _, _, err := getLease(ctx, c, asked.LeaseID, &client.GetLeaseParams{Wait: &wait, AfterEvent: &after}); err != nil {
			return nil, err
		}
	}
}

func attestationOf(ctx context.Context, c *connection, lease, id string) (*client.Attestation, error) {
	answer, err := c.GetLeaseIsolationWithResponse(ctx, lease)
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return nil, err
	}
	for _, a := range isolation.Attestations {
		if a.ID == id {
			return &a, nil
		}
	}
	return nil, fmt.Errorf("lease %s has no attestation %s", lease, id)
}

func describeAttestation(w io.Writer, a client.Attestation) {
	row(w, "Attestation", a.ID+" "+string(a.Occasion)+": "+string(a.Verdict)+" at "+instant(a.CreatedAt))
}

func saveEnvelope(file string, envelope client.Envelope) error {
	raw, err := json.MarshalIndent(envelope, "", "  ")
	if err != nil {
		return fmt.Errorf("encode envelope: %w", err)
	}
	if err := os.WriteFile(file, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("save envelope: %w", err)
	}
	return nil
}

func describeIsolation(w io.Writer, isolation *client.LeaseIsolation) {
	if !isolation.Applies {
		row(w, "This instance type comes without InfiniBand: there is no partition.")
		return
	}
	row(w, "Partition", or(isolation.Pkey, "–")+" "+or(isolation.State, ""))
	row(w, "Ports", itoa(len(isolation.Ports)))
	for _, a := range isolation.Attestations {
		describeAttestation(w, a)
	}
}

func attestVerifyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Verify an attestation or wipe certificate against the platform's published keys",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read envelope: %w", err)
			}
			var envelope protocol.Envelope
			if err := json.Unmarshal(raw, &envelope); err != nil || envelope.PayloadType == "" || len(envelope.Signatures) == 0 {
				return &Unhealthy{Detail: "NOT VERIFIED: " + args[0] + " is no signed envelope (DSSE)"}
			}
			saved, err := loadCredentials()
			if err != nil {
				return err
			}
			api, err := dial(firstOf(o.server, os.Getenv(envServer), saved.Server), "")
			if err != nil {
				return err
			}
			answer, err := api.GetAttestationKeysWithResponse(cmd.Context())
			if err != nil {
				return unreachable(api.server, err)
			}
			keys, err := PublishedKeys(answer.Body)
			if err != nil {
				return err
			}
			kid, err := VerifyEnvelope(envelope, keys)
			if err != nil {
				return &Unhealthy{Detail: err.Error()}
			}
			found := map[string]string{"verified_with": kid, "payload_type": envelope.PayloadType}
			if envelope.PayloadType == protocol.PayloadInToto {
				statement, err := fabric.VerifyAttestation(envelope, keys)
				if err != nil {
					return &Unhealthy{Detail: "NOT VERIFIED: " + err.Error()}
				}
				found["lease"], found["verdict"] = statement.Predicate.Lease.String(), string(statement.Predicate.Verdict)
			}
			return o.printer(cmd).show(found, func(w io.Writer) {
				row(w, "Verified", "signed by the platform's key "+kid)
				row(w, "Payload", envelope.PayloadType)
				if verdict, ok := found["verdict"]; ok {
					row(w, "Lease", found["lease"])
					row(w, "Verdict", verdict+", which follows from the witnesses' own signed words")
				}
			})
		},
	}
}

// PublishedKeys reads the Ed25519 keys of a JSON Web Key Set (RFC 7517, 8037) by key id.
func PublishedKeys(raw []byte) (map[string]ed25519.PublicKey, error) {
	var set struct {
		Keys []struct {
			KID string `json:"kid"`
			KTY string `json:"kty"`
			CRV string `json:"crv"`
			X   string `json:"x"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("read published keys: %w", err)
	}
	keys := make(map[string]ed25519.PublicKey, len(set.Keys))
	for _, k := range set.Keys {
		x, err := decodeBase64URL(k.X)
		if err == nil && k.KTY == "OKP" && k.CRV == "Ed25519" && len(x) == ed25519.PublicKeySize {
			keys[k.KID] = x
		}
	}
	return keys, nil
}

// VerifyEnvelope returns the id of the published key that signed the envelope. One good signature suffices, as DSSE has it.
func VerifyEnvelope(envelope protocol.Envelope, keys map[string]ed25519.PublicKey) (string, error) {
	message := protocol.PAE(envelope.PayloadType, envelope.Payload)
	for _, signature := range envelope.Signatures {
		if key, ok := keys[signature.KeyID]; ok && ed25519.Verify(key, message, signature.Sig) {
			return signature.KeyID, nil
		}
	}
	return "", fmt.Errorf("NOT VERIFIED: no signature of the %d in the envelope is by a published key", len(envelope.Signatures))
}
