package tenant

import (
	"crypto/dsa" //nolint:staticcheck // to show that it is refused
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/backend/fault"
)

func authorized(t *testing.T, public any) string {
	t.Helper()
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func TestGoodSSHKeysAreKeptInPlainForm(t *testing.T) {
	t.Parallel()
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	big2048, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for _, public := range []any{edwards, curve.Public(), big2048.Public()} {
		want := authorized(t, public)
		for _, given := range []string{want, want + " me@host\n", `no-pty,command="id" ` + want + " me"} {
			plain, fingerprint, err := parseSSHKey(given)
			require.NoError(t, err)
			require.Equal(t, want, plain)
			require.True(t, strings.HasPrefix(fingerprint, "SHA256:"))
		}
	}
}

func TestWeakAndWrongSSHKeysAreRefused(t *testing.T) {
	t.Parallel()
	modulus := new(big.Int).Lsh(big.NewInt(1), 1023)
	weak := authorized(t, &rsa.PublicKey{N: modulus.Add(modulus, big.NewInt(1)), E: 65537})
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	good := authorized(t, edwards)
	p := new(big.Int).Lsh(big.NewInt(1), 1023)
	old := authorized(t, &dsa.PublicKey{
		Parameters: dsa.Parameters{P: p.Add(p, big.NewInt(1)), Q: new(big.Int).Lsh(big.NewInt(1), 159), G: big.NewInt(2)}, Y: big.NewInt(3),
	})
	for name, text := range map[string]string{
		"weak RSA": weak, "DSA": old, "empty": "", "garbage": "ssh-ed25519 not-base64", "two": good + "\n" + good,
		"private": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----", "long": strings.Repeat("a", maxPublicKeyLen+1),
	} {
		_, _, err := parseSSHKey(text)
		require.True(t, fault.Is(err, fault.Invalid), name)
		require.NotContains(t, err.Error(), "AAAA", "never repeats what may be a private key")
	}
}

func FuzzSSHKeys(f *testing.F) {
	f.Add("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ5dGVzYnl0ZXNieXRlc2J5dGVzYnl0ZXNieXRlc2J5dGU= me")
	f.Fuzz(func(t *testing.T, text string) {
		plain, _, err := parseSSHKey(text)
		if err == nil {
			require.NotContains(t, plain, "\n")
			require.Len(t, strings.Fields(plain), 2, "type and key, nothing else")
		}
	})
}
