package ufm

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/leasehold/leasehold/agent/internal/backoff"
)

// Server says where UFM is.
type Server struct {
	// URL is https://host[:port], without a path.
	URL string
	// CAFile is the authority that signed UFM's certificate; "": the system's authorities.
	CAFile string
	Login  Login
	// Timeout bounds one call, a retry being another; zero: 10 s.
	Timeout time.Duration
	// Retry spaces out retries; zero: between 250 ms and 2 s.
	Retry backoff.Policy
	// MaxBodyBytes bounds an answer; zero: 128 MiB, which is a list of some 60,000 ports.
	MaxBodyBytes int64
}

const (
	defaultTimeout = 10 * time.Second
	defaultMaxBody = 128 << 20
	// attempts is how often a call that may be repeated is made.
	attempts = 3
)

// Faults of answers. All of them mean that nothing is known.
var (
	errNotJSON = errors.New("the answer is not JSON, or not all of it (a login page, a cut connection?)")
	errStale   = errors.New("the answer is older than what was written last")
	errTooLong = errors.New("the answer is longer than any that makes sense")
	errPartial = errors.New("the answer lacks what every UFM has")
	errFabric  = errors.New("this UFM manages another fabric, or knows no port")
)

// statusError is an answer that is not a success.
type statusError struct {
	Status int
	Text   string // the beginning of the answer, printable
}

func (e *statusError) Error() string {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("UFM refuses our credentials (HTTP %d)", e.Status)
	default:
		return strings.TrimSuffix(fmt.Sprintf("UFM answers HTTP %d: %s", e.Status, e.Text), ": ")
	}
}

// unsupported reports whether this UFM has no such call.
func unsupported(err error) bool {
	var status *statusError
	if !errors.As(err, &status) {
		return false
	}
	return status.Status == http.StatusNotFound || status.Status == http.StatusMethodNotAllowed || status.Status == http.StatusNotImplemented
}

// refused reports whether UFM understood a call and will not do it: the same again would be refused again.
func refused(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.Status >= 400 && status.Status < 500 && status.Status != http.StatusTooManyRequests
}

// client makes calls. It is safe for concurrent use.
type client struct {
	server Server
	base   string
	http   *http.Client

	mu        sync.Mutex
	lastWrite time.Time // by UFM's clock
}

func newClient(s Server) (*client, error) {
	address, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New("reach UFM: its address is not a URL") // without the address: it may hold a password
	}
	if address.Scheme != "https" || address.Host == "" || address.User != nil || strings.Trim(address.Path, "/") != "" || address.RawQuery != "" {
		return nil, errors.New("reach UFM: its address must be https://host[:port] and nothing more")
	}
	if err := s.Login.check(); err != nil {
		return nil, err
	}
	config, err := tlsConfig(s.CAFile, s.Login)
	if err != nil {
		return nil, err
	}
	if s.Timeout <= 0 {
		s.Timeout = defaultTimeout
	}
	if s.MaxBodyBytes <= 0 {
		s.MaxBodyBytes = defaultMaxBody
	}
	if s.Retry.Max <= 0 {
		s.Retry.Max = 2 * time.Second
	}
	return &client{
		server: s, base: "https://" + address.Host + s.Login.basePath(),
		http: &http.Client{
			Transport: &http.Transport{
				TLSClientConfig: config, Proxy: nil, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
				TLSHandshakeTimeout: s.Timeout, MaxResponseHeaderBytes: 64 << 10,
			},
			// A redirection is a login page's, or somebody's who wants our credentials.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// get reads a resource. It is tried again when that may help.
func (c *client) get(ctx context.Context, path string) ([]byte, error) {
	return c.repeat(ctx, http.MethodGet, path, nil)
}

// put and remove may be done twice: a set stays the set, and who has left can leave again.
func (c *client) put(ctx context.Context, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	_, err = c.repeat(ctx, http.MethodPut, path, data)
	return err
}

func (c *client) remove(ctx context.Context, path string) error {
	_, err := c.repeat(ctx, http.MethodDelete, path, nil)
	return err
}

// post is done once. Whoever does not know what came of it looks before he does it again.
func (c *client) post(ctx context.Context, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	_, err = c.once(ctx, http.MethodPost, path, data)
	return err
}

func (c *client) repeat(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	pause := backoff.New(c.server.Retry)
	for try := 1; ; try++ {
		answer, err := c.once(ctx, method, path, body)
		if err == nil || try == attempts || !passing(err) {
			return answer, err
		}
		if pause.Pause(ctx, nil) != nil {
			return nil, err
		}
	}
}

// passing reports whether the same call may succeed a moment later.
func passing(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.Status >= 500 && status.Status != http.StatusNotImplemented || status.Status == http.StatusTooManyRequests
	}
	var untrusted *tls.CertificateVerificationError
	// A server that is silent is not made to speak by asking again; what we are asked to do is asked for again anyway.
	for _, final := range []error{errNotJSON, errTooLong, errStale, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, final) {
			return false
		}
	}
	return !errors.As(err, &untrusted)
}

func (c *client) once(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.server.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("call UFM: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Cache-Control", "no-cache")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if err := c.server.Login.authorize(request); err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call UFM: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := c.accept(method, response)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return answer, nil
}

// accept reads the answer, if it is one of UFM's to what was asked.
func (c *client) accept(method string, response *http.Response) ([]byte, error) {
	answer, err := io.ReadAll(io.LimitReader(response.Body, c.server.MaxBodyBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case int64(len(answer)) > c.server.MaxBodyBytes:
		return nil, errTooLong
	case response.StatusCode < 200 || response.StatusCode > 299:
		return nil, &statusError{Status: response.StatusCode, Text: excerpt(response.Header, answer)}
	}
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	isJSON := err == nil && kind == "application/json"
	if method != http.MethodGet {
		// What a write answers says nothing that is relied on, but a login page is no answer of UFM's.
		if kind == "text/html" || (!isJSON && looksLikeHTML(answer)) {
			return nil, errNotJSON
		}
		c.wrote(response.Header)
		return answer, nil
	}
	if !isJSON || !json.Valid(answer) {
		return nil, errNotJSON
	}
	return answer, c.fresh(response.Header)
}

func looksLikeHTML(answer []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(answer), []byte("<")) }

// wrote notes when UFM took a write, by its own clock.
func (c *client) wrote(header http.Header) {
	at, err := http.ParseTime(header.Get("Date"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && at.After(c.lastWrite) {
		c.lastWrite = at
	}
}

// fresh refuses an answer from a cache, or from before the last write.
func (c *client) fresh(header http.Header) error {
	if age := header.Get("Age"); age != "" && age != "0" {
		return errStale
	}
	at, err := http.ParseTime(header.Get("Date"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && at.Before(c.lastWrite) {
		return errStale
	}
	return nil
}

// excerpt is the beginning of an error's text, if it is text.
func excerpt(header http.Header, answer []byte) string {
	const most = 160
	if strings.Contains(header.Get("Content-Type"), "html") || looksLikeHTML(answer) {
		return "(a web page)"
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(answer[:min(len(answer), most)]))
	return strings.Join(strings.Fields(text), " ")
}
