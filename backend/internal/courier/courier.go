// Package courier sends webhooks over HTTP. It connects to public addresses only, whatever a name stands for at that moment, and follows
// no redirect, so that nobody can have it talk to the platform's own network.
package courier

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/webhook"
)

const (
	dialWithin   = 5 * time.Second
	answerWithin = 15 * time.Second
	maxHeader    = 16 << 10
	maxKept      = 2 << 10 // of an answer's body, in the delivery log
)

// Sender implements webhook.Sender.
type Sender struct {
	client *http.Client
	clock  clock.Clock
}

var _ webhook.Sender = (*Sender)(nil)

// New returns a sender. lab lets it connect to private addresses, for an installation on one machine.
func New(clk clock.Clock, lab bool) *Sender {
	dialer := &net.Dialer{Timeout: dialWithin, KeepAlive: 30 * time.Second}
	if !lab {
		dialer.Control = publicOnly
	}
	return &Sender{clock: clk, client: &http.Client{
		Timeout:       answerWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would resolve the name once more, out of our sight
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    dialWithin,
			ResponseHeaderTimeout:  answerWithin,
			MaxResponseHeaderBytes: maxHeader,
			MaxIdleConnsPerHost:    2,
			MaxIdleConns:           100,
			IdleConnTimeout:        30 * time.Second,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
		},
	}}
}

// errRefused is an address that nothing is sent to.
type errRefused struct{ why string }

// Error implements error.
func (e errRefused) Error() string { return "the address is " + e.why }

// publicOnly is asked for each connection, after the name was resolved and before the first packet.
func publicOnly(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return errRefused{"not one of TCP"}
	}
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return errRefused{"not readable"}
	}
	if why := webhook.Refusal(target.Addr()); why != "" {
		return errRefused{why}
	}
	return nil
}

// Send implements webhook.Sender.
func (s *Sender) Send(ctx context.Context, post webhook.Post) (webhook.Answer, error) {
	request, err := newRequest(ctx, post)
	if err != nil {
		return webhook.Answer{}, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return webhook.Answer{}, explain(err)
	}
	defer response.Body.Close()                                          //nolint:errcheck // there is nothing more to learn from it
	beginning, _ := io.ReadAll(io.LimitReader(response.Body, maxKept+1)) // the status is all that counts
	return webhook.Answer{Status: response.StatusCode, Body: text(beginning), RetryAfter: s.retryAfter(response)}, nil
}

func newRequest(ctx context.Context, post webhook.Post) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, post.URL, bytes.NewReader(post.Body))
	if err != nil {
		return nil, errors.New("the URL is not usable") //nolint:nilerr // its words may quote what is not text
	}
	signatures := make([]string, len(post.Secrets))
	for i, secret := range post.Secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		if err == nil {
			signatures[i], err = signer.Sign(post.ID, post.At, post.Body)
		}
		if err != nil {
			return nil, errors.New("the secret is not usable") //nolint:nilerr // never quote a secret
		}
	}
	request.Header = http.Header{
		"Content-Type":      {"application/json"},
		"User-Agent":        {"Leasehold-Webhooks/1"},
		"Webhook-Id":        {post.ID},
		"Webhook-Timestamp": {strconv.FormatInt(post.At.Unix(), 10)},
		"Webhook-Signature": {strings.Join(signatures, " ")},
	}
	return request, nil
}

// explain words a failure for the endpoint's owner. What a resolver or the kernel says may tell of our network, so that only kinds are
// told apart.
func explain(err error) error {
	var (
		refused  errRefused
		resolve  *net.DNSError
		network  *net.OpError
		untrust  *tls.CertificateVerificationError
		alert    tls.AlertError
		notHTTPS tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &resolve):
		return errors.New("the name cannot be resolved")
	case errors.As(err, &untrust):
		return errors.New("the certificate is not trusted")
	case errors.As(err, &alert), errors.As(err, &notHTTPS):
		return errors.New("TLS failed")
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return errors.New("there was no answer in time")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("the connection was refused")
	case errors.As(err, &network):
		return errors.New("there is no connection")
	default:
		return errors.New("the answer is not HTTP, or broke off")
	}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// retryAfter reads the header where it has a meaning.
func (s *Sender) retryAfter(response *http.Response) time.Duration {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	value := response.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(s.clock.Now()))
	}
	return 0
}

// text makes what a stranger sent fit for a column and a page.
func text(raw []byte) string {
	cut := len(raw) > maxKept
	if cut {
		raw = raw[:maxKept]
	}
	clean := strings.ReplaceAll(strings.ToValidUTF8(string(raw), "\ufffd"), "\x00", "\ufffd")
	if cut {
		clean = fmt.Sprint(clean, "…")
	}
	return clean
}
