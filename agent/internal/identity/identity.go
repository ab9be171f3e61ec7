// Package identity is who this agent is: an Ed25519 key that never leaves its directory, and the ids that the control plane
// gave for it. One directory holds one identity.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	keyFile    = "key"
	recordFile = "agent.json"
	keyMode    = 0o600
	dirMode    = 0o700
)

// Record is what enrolment made of the key. An empty AgentID means not enrolled yet.
type Record struct {
	AgentID          string             `json:"agent_id"`
	Kind             protocol.AgentKind `json:"kind"`
	Name             string             `json:"name"`
	NodeID           string             `json:"node_id,omitempty"`
	FabricID         string             `json:"fabric_id,omitempty"`
	Server           string             `json:"server"`
	HeartbeatSeconds int                `json:"heartbeat_seconds"`
	EnrolledAt       time.Time          `json:"enrolled_at"`
}

// Identity is a key with its record.
type Identity struct {
	dir    string
	key    ed25519.PrivateKey
	record Record
}

// Open reads the identity of dir, or makes a key there. A key that others may read is refused: it may have been copied.
func Open(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("make identity directory: %w", err)
	}
	key, err := readKey(filepath.Join(dir, keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(filepath.Join(dir, keyFile))
	}
	if err != nil {
		return nil, fmt.Errorf("open key: %w", err)
	}
	id := &Identity{dir: dir, key: key}
	if _, err := durable.ReadJSON(filepath.Join(dir, recordFile), &id.record); err != nil {
		return nil, fmt.Errorf("open identity: %w", err)
	}
	return id, nil
}

// Dir is the identity's directory; the agent's other state lies beside the key.
func (i *Identity) Dir() string { return i.dir }

// Record returns what enrolment gave.
func (i *Identity) Record() Record { return i.record }

// Enrolled reports whether the control plane knows this key.
func (i *Identity) Enrolled() bool { return i.record.AgentID != "" }

// PublicKey returns the raw 32 bytes.
func (i *Identity) PublicKey() ed25519.PublicKey {
	public, _ := i.key.Public().(ed25519.PublicKey) //nolint:errcheck // an ed25519 key has an ed25519 public key
	return public
}

// Enroll keeps what the control plane answered, durably, before it is used.
func (i *Identity) Enroll(r Record) error {
	if err := durable.WriteJSON(filepath.Join(i.dir, recordFile), r, keyMode); err != nil {
		return fmt.Errorf("keep identity: %w", err)
	}
	i.record = r
	return nil
}

// Sign wraps payload in a DSSE envelope with this agent's signature.
func (i *Identity) Sign(payloadType string, payload []byte) protocol.Envelope {
	return protocol.Envelope{
		PayloadType: payloadType,
		Payload:     payload,
		Signatures: []protocol.Signature{
			{KeyID: i.record.AgentID, Sig: ed25519.Sign(i.key, protocol.PAE(payloadType, payload))},
		},
	}
}

// Token signs one request, as package protocol says. uri is path and query; at is the control plane's time as far as known.
func (i *Identity) Token(method, uri string, body []byte, at time.Time) (string, error) {
	// A token is dated back a little, so that a server whose clock runs a moment behind does not see one from the future.
	issued := at.Add(-2 * time.Second)
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"iss":                i.record.AgentID,
		"sub":                i.record.AgentID,
		"iat":                jwt.NewNumericDate(issued),
		"exp":                jwt.NewNumericDate(issued.Add(protocol.MaxTokenAge)),
		"jti":                rand.Text(),
		protocol.ClaimMethod: method,
		protocol.ClaimPath:   uri,
		protocol.ClaimBody:   protocol.BodyHash(body),
	})
	signed, err := token.SignedString(i.key)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return signed, nil
}

func readKey(path string) (ed25519.PrivateKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o: only its owner may read it (0600)", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, not an Ed25519 key", path, parsed)
	}
	return key, nil
}

func makeKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return key, durable.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), keyMode)
}
