package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"
)

// newTransport is shared by all agents of this process, so that they share connections too.
func newTransport(caFile string) (*http.Transport, error) {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("the default transport is a %T", http.DefaultTransport)
	}
	t = t.Clone()
	t.MaxIdleConns = 0
	t.MaxIdleConnsPerHost = 4096
	t.IdleConnTimeout = 2 * time.Minute
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", caFile)
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}
