package tenant

import (
	"context"
	"crypto/rsa"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// SSHKey is a public key that leases can let in.
type SSHKey struct {
	ID          ids.SSHKey
	Org         ids.Org
	User        ids.User
	Name        string
	PublicKey   string // "type base64", without options or comment
	Fingerprint string // SHA256:…
	CreatedAt   time.Time
}

const (
	minRSABits      = 2048
	maxPublicKeyLen = 16_384
)

// parseSSHKey reads one line of an authorized_keys file and gives its plain form and fingerprint. Options are dropped, since they
// are commands to somebody else's server, and so are comments. Private keys, certificates, DSA and RSA under 2048 bits are Invalid.
func parseSSHKey(text string) (plain, fingerprint string, err error) { //nolint:nonamedreturns // which is which
	refuse := func(why string) error {
		return fault.New(fault.Invalid, "invalid-ssh-key", "the SSH key cannot be used: it %s", why).At("/public_key", why)
	}
	switch {
	case len(text) > maxPublicKeyLen:
		return "", "", refuse("is too long")
	case strings.Contains(text, "PRIVATE KEY"):
		return "", "", refuse("is a private key: keep it to yourself, and send the .pub file")
	}
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(strings.TrimSpace(text)))
	if err != nil {
		return "", "", refuse("is not a public key in authorized_keys form")
	}
	if len(strings.TrimSpace(string(rest))) > 0 {
		return "", "", refuse("has more than one line")
	}
	if why := weakness(key); why != "" {
		return "", "", refuse(why)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), ssh.FingerprintSHA256(key), nil
}

// weakness says why a key is refused, "" for a good one.
func weakness(key ssh.PublicKey) string {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return ""
	case ssh.KeyAlgoRSA:
		carrier, ok := key.(ssh.CryptoPublicKey)
		if !ok {
			return "is not readable"
		}
		public, ok := carrier.CryptoPublicKey().(*rsa.PublicKey)
		if !ok || public.N.BitLen() < minRSABits {
			return "is an RSA key of fewer than 2048 bits"
		}
		return ""
	default:
		return "is of a type that is not allowed: use ssh-ed25519, ecdsa or RSA of at least 2048 bits"
	}
}

// CreateSSHKey adds a public key to the organization; Conflict when it is there already.
func (s *Service) CreateSSHKey(ctx context.Context, name, publicKey string) (SSHKey, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return SSHKey{}, err
	}
	if n := len([]rune(name)); n < 1 || n > 100 {
		return SSHKey{}, fault.New(fault.Invalid, "invalid-request", "the request has defects").At("/name", "has 1 to 100 characters")
	}
	plain, fingerprint, err := parseSSHKey(publicKey)
	if err != nil {
		return SSHKey{}, err
	}
	key := SSHKey{
		ID: ids.Make[ids.SSHKey](), Org: actor.Org, User: actor.User, Name: name, PublicKey: plain, Fingerprint: fingerprint, CreatedAt: s.clock.Now(),
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.sshKeys.CreateSSHKey(ctx, key); err != nil {
			return err
		}
		return s.audit.Record(ctx, "ssh_key.created", key.ID.String(), nil, map[string]any{"name": name, "fingerprint": fingerprint})
	})
	if err != nil {
		return SSHKey{}, fmt.Errorf("create SSH key: %w", err)
	}
	return key, nil
}

// SSHKeys lists the organization's keys, newest first.
func (s *Service) SSHKeys(ctx context.Context, page Page[ids.SSHKey]) ([]SSHKey, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var keys []SSHKey
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		keys, err = s.sshKeys.SSHKeys(ctx, actor.Org, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list SSH keys: %w", err)
	}
	return keys, nil
}

// SSHKeysByID returns the actor's keys with these ids, in their order; Invalid names the first that is not there, without saying
// whether it is somebody else's.
func (s *Service) SSHKeysByID(ctx context.Context, wanted []ids.SSHKey) ([]SSHKey, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var found []SSHKey
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		found, err = s.sshKeys.SSHKeysByID(ctx, actor.Org, wanted)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find SSH keys: %w", err)
	}
	byID := make(map[ids.SSHKey]SSHKey, len(found))
	for _, key := range found {
		byID[key.ID] = key
	}
	ordered := make([]SSHKey, len(wanted))
	for i, id := range wanted {
		key, ok := byID[id]
		if !ok {
			return nil, fault.New(fault.Invalid, "unknown-ssh-key", "there is no such SSH key").At(fmt.Sprintf("/ssh_key_ids/%d", i), "does not exist")
		}
		ordered[i] = key
	}
	return ordered, nil
}

// DeleteSSHKey removes a key from the account; leases that were booked with it keep it. NotFound for another organization's.
func (s *Service) DeleteSSHKey(ctx context.Context, id ids.SSHKey) error {
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.sshKeys.DeleteSSHKey(ctx, id); err != nil {
			return err
		}
		return s.audit.Record(ctx, "ssh_key.deleted", id.String(), nil, nil)
	})
	if err != nil {
		return fmt.Errorf("delete SSH key: %w", err)
	}
	return nil
}
