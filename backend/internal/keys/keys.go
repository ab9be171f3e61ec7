// Package keys has the platform's Ed25519 signing keys: one for access tokens, one for attestations and wipe certificates. A key
// lives in a file of its own, in PEM, readable by its owner only; the database gets the public half and keeps it for ever, so that
// an old signature can always be checked.
package keys

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Purpose says what a key signs.
type Purpose string

// The purposes.
const (
	Session     Purpose = "session"
	Attestation Purpose = "attestation"
)

// Key is a private signing key.
type Key struct {
	kid     string
	private ed25519.PrivateKey
}

// KeyID returns the key's name: its RFC 7638 thumbprint. The error is always nil; it is there for DSSE's signer.
func (k *Key) KeyID() (string, error) { return k.kid, nil }

// Public returns the public half.
func (k *Key) Public() ed25519.PublicKey {
	public, _ := k.private.Public().(ed25519.PublicKey)
	return public
}

// Sign signs data (plain Ed25519). The error is always nil; it is there for DSSE's signer, as is the context.
func (k *Key) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(k.private, data), nil
}

// Generate makes a fresh key.
func Generate() (*Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return newKey(private), nil
}

func newKey(private ed25519.PrivateKey) *Key {
	public, _ := private.Public().(ed25519.PublicKey)
	return &Key{kid: Thumbprint(public), private: private}
}

// Thumbprint is the RFC 7638 thumbprint of a public key (RFC 8037, appendix A.3), its name everywhere.
func Thumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

const blockType = "PRIVATE KEY"

// Parse reads a key in PKCS #8 PEM, as `openssl genpkey -algorithm ed25519` writes it.
func Parse(text []byte) (*Key, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != blockType {
		return nil, fmt.Errorf("parse key: not a PEM block of type %s", blockType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("parse key: not an Ed25519 key")
	}
	return newKey(private), nil
}

// Load reads a key file. It refuses one that others can read.
func Load(path string) (*Key, error) {
	text, err := readOwn(path)
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// readOwn reads a file that only its owner can read.
func readOwn(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("load key: %s is readable by others; run: chmod 600 %s", path, path)
	}
	text, err := os.ReadFile(path) //nolint:gosec // the path is configuration
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	return text, nil
}

// LoadOrCreate reads the key of a purpose in a state directory, and makes it at the first start. Several starters at once end up with
// the same key.
func LoadOrCreate(dir string, purpose Purpose) (*Key, error) {
	path := filepath.Join(dir, string(purpose)+".key")
	key, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := create(dir, path); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return Load(path)
}

func create(dir, path string) error {
	key, err := Generate()
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key.private)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return writeOnce(dir, path, &pem.Block{Type: blockType, Bytes: der})
}

// writeOnce writes a whole file beside the path and links it there: the first link wins, and nobody ever sees half a key.
func writeOnce(dir, path string, block *pem.Block) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(dir, ".key-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // a leftover hurts nobody
	_, err = temporary.Write(pem.EncodeToMemory(block))
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Published is the public half of a key, as the database keeps it.
type Published struct {
	KeyID     string
	Public    ed25519.PublicKey
	CreatedAt time.Time
	RetiredAt time.Time // zero: in use
}

// Registry keeps the public halves.
type Registry interface {
	// PublishKey keeps a key; publishing it again changes nothing.
	PublishKey(ctx context.Context, purpose Purpose, key Published) error
	// PublishedKeys lists all keys of a purpose, retired ones included, the oldest first.
	PublishedKeys(ctx context.Context, purpose Purpose) ([]Published, error)
}

// Publish makes the public half known.
func (k *Key) Publish(ctx context.Context, registry Registry, purpose Purpose, now time.Time) error {
	if err := registry.PublishKey(ctx, purpose, Published{KeyID: k.kid, Public: k.Public(), CreatedAt: now}); err != nil {
		return fmt.Errorf("publish %s key: %w", purpose, err)
	}
	return nil
}
