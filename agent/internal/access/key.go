package access

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/durable"
)

// openSigner reads a private key in OpenSSH's form, or makes one that only its owner may read.
func openSigner(path string) (gossh.Signer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = newKey(); err == nil {
			err = durable.WriteFile(path, data, 0o600)
		}
	}
	if err != nil {
		return nil, err
	}
	signer, err := gossh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return signer, nil
}

// newKey makes an Ed25519 key in OpenSSH's form.
func newKey() ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	block, err := gossh.MarshalPrivateKey(private, "leasehold-agent")
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}
