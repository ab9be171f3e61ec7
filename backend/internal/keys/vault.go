package keys

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Vault seals secrets that the platform must be able to read again, those of webhooks and of one-time passwords, so that a copy of the
// database alone does not give them away. Its key lives beside the signing keys, and is shared by all replicas.
type Vault struct{ aead cipher.AEAD }

const (
	vaultFile  = "secrets.key"
	vaultBlock = "LEASEHOLD SECRET KEY"
	vaultBytes = 32 // AES-256
)

// NewVault returns the vault of a key of 32 bytes.
func NewVault(key []byte) (*Vault, error) {
	if len(key) != vaultBytes {
		return nil, fmt.Errorf("make vault: the key has %d bytes, not %d", len(key), vaultBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make vault: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make vault: %w", err)
	}
	return &Vault{aead: aead}, nil
}

// OpenVault reads the key in a state directory, and makes it at the first start. Several starters at once end up with the same key.
func OpenVault(dir string) (*Vault, error) {
	path := filepath.Join(dir, vaultFile)
	text, err := readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := make([]byte, vaultBytes)
		if _, err := rand.Read(fresh); err != nil {
			return nil, fmt.Errorf("make vault: %w", err)
		}
		if err := writeOnce(dir, path, &pem.Block{Type: vaultBlock, Bytes: fresh}); err != nil {
			return nil, fmt.Errorf("make vault: %w", err)
		}
		text, err = readOwn(path)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != vaultBlock {
		return nil, fmt.Errorf("open vault: %s is no PEM block of type %s", path, vaultBlock)
	}
	return NewVault(block.Bytes)
}

// Seal encrypts a secret. about names what it belongs to: it must be the same when it is opened, so that a sealed secret that somebody
// copies to another row is of no use there.
func (v *Vault) Seal(secret []byte, about string) []byte {
	return v.aead.Seal(nil, nil, secret, []byte(about)) //nolint:gosec // the AEAD draws the nonce
}

// Unseal is the way back. It fails for what was sealed by another key, or about something else.
func (v *Vault) Unseal(sealed []byte, about string) ([]byte, error) {
	secret, err := v.aead.Open(nil, nil, sealed, []byte(about))
	if err != nil {
		return nil, fmt.Errorf("unseal: %w", err)
	}
	return secret, nil
}
