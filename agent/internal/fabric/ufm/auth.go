package ufm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// Login says how UFM is to know us: a client certificate, a token, or a user's password; exactly one. Secrets are in files that
// only their owner can read, and are read again for each call, so that a new one needs no restart.
type Login struct {
	// CertFile and KeyFile are a client certificate and its key, PEM.
	CertFile, KeyFile string
	// TokenFile holds an access token of UFM's.
	TokenFile string
	// User and PasswordFile are for basic authentication.
	User, PasswordFile string
}

// The base path tells UFM how its caller means to be known.
const (
	pathPlain = "/ufmRest"   // client certificate or password
	pathToken = "/ufmRestV3" //nolint:gosec // a path, not a token
)

func (l Login) check() error {
	ways := 0
	for _, set := range []bool{l.CertFile != "" || l.KeyFile != "", l.TokenFile != "", l.User != "" || l.PasswordFile != ""} {
		if set {
			ways++
		}
	}
	switch {
	case ways != 1:
		return errors.New("log in to UFM: give one of a client certificate, a token file, or a user with a password file")
	case (l.CertFile == "") != (l.KeyFile == ""):
		return errors.New("log in to UFM: a client certificate needs its key, and the key its certificate")
	case (l.User == "") != (l.PasswordFile == ""):
		return errors.New("log in to UFM: a user needs a password file, and a password file its user")
	case strings.Contains(l.User, ":"):
		return errors.New("log in to UFM: a user's name has no colon")
	}
	if l.KeyFile != "" {
		return isPrivate(l.KeyFile)
	}
	_, err := readSecret(l.TokenFile + l.PasswordFile) // one of them is ""
	return err
}

func (l Login) basePath() string {
	if l.TokenFile != "" {
		return pathToken
	}
	return pathPlain
}

// authorize adds what the call needs. A client certificate is shown by the transport.
func (l Login) authorize(r *http.Request) error {
	switch {
	case l.TokenFile != "":
		token, err := readSecret(l.TokenFile)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Basic "+token) // UFM's own use of the scheme: the token stands where user:password would
	case l.User != "":
		password, err := readSecret(l.PasswordFile)
		if err != nil {
			return err
		}
		r.SetBasicAuth(l.User, password)
	}
	return nil
}

// isPrivate refuses a file that others than its owner may read.
func isPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read secret: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("read secret: %s must be a file that only its owner can read (mode 0600), and is %v", path, info.Mode())
	}
	return nil
}

// readSecret reads a line from a private file. Errors never hold the content.
func readSecret(path string) (string, error) {
	if err := isPrivate(path); err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	secret := strings.TrimSpace(string(data))
	if secret == "" || strings.ContainsAny(secret, "\r\n\x00") {
		return "", fmt.Errorf("read secret: %s must hold one line", path)
	}
	return secret, nil
}

// tlsConfig verifies UFM's certificate, always: against the authority in caFile, or the system's.
func tlsConfig(caFile string, l Login) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read UFM's authority: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read UFM's authority: %s holds no certificate", caFile)
		}
	}
	if l.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile); err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
			return &pair, err
		}
	}
	return config, nil
}
