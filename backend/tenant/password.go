package tenant

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/crypto/argon2"

	"github.com/leasehold/leasehold/backend/fault"
)

// PasswordCost is what one argon2id hash costs; zero fields take the defaults. The memory is what makes guessing expensive.
type PasswordCost struct {
	MemoryKiB uint32 // default 19,456 (OWASP's floor for two passes)
	Passes    uint32 // default 2
}

const (
	saltBytes = 16
	hashBytes = 32
	lanes     = 1
	// A hash that asks for more than this is not ours, and must not be able to take the machine's memory.
	maxMemoryKiB = 1 << 20
	maxPasses    = 16

	minPasswordBytes = 12
)

// passwords hashes and verifies, a bounded number at a time: each takes MemoryKiB and one core, and log-ins must not be able to
// take all of them.
type passwords struct {
	cost  PasswordCost
	turns chan struct{}
	dummy string // verified when there is no such user, so that the answer takes as long
}

func newPasswords(cost PasswordCost) (*passwords, error) {
	if cost.MemoryKiB == 0 {
		cost.MemoryKiB = 19_456
	}
	if cost.Passes == 0 {
		cost.Passes = 2
	}
	p := &passwords{cost: cost, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)))}
	dummy, err := p.encode("there is no such user")
	if err != nil {
		return nil, err
	}
	p.dummy = dummy
	return p, nil
}

// hash returns the PHC string of a new password.
func (p *passwords) hash(ctx context.Context, password string) (string, error) {
	if err := p.wait(ctx); err != nil {
		return "", err
	}
	defer p.leave()
	return p.encode(password)
}

// verify reports whether password is the one behind the PHC string; an empty string stands for a user who does not exist and takes
// as long as any. It answers Unavailable when no turn comes before ctx ends.
func (p *passwords) verify(ctx context.Context, phc, password string) (bool, error) {
	exists := phc != ""
	if !exists {
		phc = p.dummy
	}
	salt, want, cost, err := decodePHC(phc)
	if err != nil {
		return false, fmt.Errorf("verify password: %w", err)
	}
	if err := p.wait(ctx); err != nil {
		return false, err
	}
	defer p.leave()
	got := argon2.IDKey([]byte(password), salt, cost.Passes, cost.MemoryKiB, lanes, hashBytes)
	return subtle.ConstantTimeCompare(got, want) == 1 && exists, nil
}

// outdated reports whether the hash was made at another cost than today's.
func (p *passwords) outdated(phc string) bool {
	_, _, cost, err := decodePHC(phc)
	return err != nil || cost != p.cost
}

func (p *passwords) wait(ctx context.Context) error {
	select {
	case p.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "busy", "too many log-ins at once, try again")
	}
}

func (p *passwords) leave() { <-p.turns }

func (p *passwords) encode(password string) (string, error) {
	salt := make([]byte, saltBytes)
	if _, err := rand.Read(salt); err != nil {
		return "", fmt.Errorf("draw salt: %w", err)
	}
	sum := argon2.IDKey([]byte(password), salt, p.cost.Passes, p.cost.MemoryKiB, lanes, hashBytes)
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.cost.MemoryKiB, p.cost.Passes, lanes,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(sum)), nil
}

func decodePHC(phc string) (salt, sum []byte, cost PasswordCost, err error) { //nolint:nonamedreturns // three of them need names
	parts := strings.Split(phc, "$")
	if len(parts) != 6 || parts[1] != "argon2id" {
		return nil, nil, cost, fmt.Errorf("password hash is not argon2id")
	}
	var version, p uint32
	if _, err := fmt.Sscanf(parts[2], "v=%d", &version); err != nil || version != argon2.Version {
		return nil, nil, cost, fmt.Errorf("password hash has another version")
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &cost.MemoryKiB, &cost.Passes, &p); err != nil || p != lanes ||
		cost.MemoryKiB > maxMemoryKiB || cost.Passes < 1 || cost.Passes > maxPasses {
		return nil, nil, cost, fmt.Errorf("password hash has unusable parameters")
	}
	if salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil {
		return nil, nil, cost, fmt.Errorf("password hash has no salt")
	}
	if sum, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(sum) != hashBytes {
		return nil, nil, cost, fmt.Errorf("password hash has no hash")
	}
	return salt, sum, cost, nil
}

// checkPassword refuses what is too short to be one.
func checkPassword(password string) error {
	if len(password) < minPasswordBytes {
		return fault.New(fault.Invalid, "weak-password", "a password has at least %d characters", minPasswordBytes).At("/password", "is too short")
	}
	return nil
}
