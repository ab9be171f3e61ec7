package ufm_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
)

// clientCertificate makes one for a name, and returns its files.
func clientCertificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

func TestEachWayToLogInWorks(t *testing.T) {
	t.Parallel()
	cert, key := clientCertificate(t, ufmtest.User)
	for name, login := range map[string]ufm.Login{
		"certificate": {CertFile: cert, KeyFile: key},
		"token":       {TokenFile: secretFile(t, ufmtest.Token)},
		"password":    {User: ufmtest.User, PasswordFile: secretFile(t, ufmtest.Password)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) { c.Server.Login = login })
			_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
			require.NoError(t, err)
		})
	}
}

func TestWrongCredentialsMeanThatNothingIsKnown(t *testing.T) {
	t.Parallel()
	cert, key := clientCertificate(t, "somebody else")
	for name, login := range map[string]ufm.Login{
		"certificate": {CertFile: cert, KeyFile: key},
		"token":       {TokenFile: secretFile(t, "hunter2hunter2")},
		"password":    {User: ufmtest.User, PasswordFile: secretFile(t, "hunter2hunter2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) { c.Server.Login = login })
			_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
			require.ErrorContains(t, err, "credentials")
			require.NotContains(t, err.Error(), "hunter2")
			links, err := b.Observe(t.Context(), b.ports[:1])
			require.NoError(t, err)
			require.False(t, links[0].HCA.Readable)
			require.Empty(t, b.server.Writes())
		})
	}
}

func TestATokenThatExpiredIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	file := secretFile(t, ufmtest.Token)
	b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) { c.Server.Login = ufm.Login{TokenFile: file} })
	desired := set(tenant(5, "lease-a", b.ports[0]))
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	b.server.SetToken("the-next")
	_, err = b.Apply(t.Context(), set(), 2)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.NotEmpty(t, b.server.Members(5))
	require.NoError(t, os.WriteFile(file, []byte("the-next"), 0o600))
	_, err = b.Apply(t.Context(), set(), 2)
	require.NoError(t, err)
	require.Empty(t, b.server.Members(5))
}

func TestAServerWhoseCertificateIsNotTrustedIsToldNothing(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	stranger := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Authorization") }))
	defer stranger.Close()
	b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) {
		c.Server.URL, c.Server.CAFile = stranger.URL, "" // the system's authorities do not know it
	})
	_, err := b.Apply(t.Context(), set(), 1)
	require.ErrorContains(t, err, "certificate")
	require.Empty(t, asked)
}

func TestCredentialsDoNotFollowARedirection(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	thief := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Authorization") }))
	defer thief.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: thief.Certificate().Raw}), 0o600))
	sender := httptest.NewTLSServer(http.RedirectHandler(thief.URL, http.StatusFound))
	defer sender.Close()
	b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) { c.Server.URL, c.Server.CAFile = sender.URL, ca })
	_, err := b.Apply(t.Context(), set(), 1)
	require.ErrorContains(t, err, "302")
	require.Empty(t, asked)
}
