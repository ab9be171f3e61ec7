// Package redfish speaks to management controllers (BMCs) by DMTF's Redfish (DSP0266), over TLS only, and puts up with what they really do:
// resets whose allowed values are missing, empty bodies, tasks instead of answers, entity tags that are demanded or not known at all,
// sessions that are not there. It implements power.Controller.
package redfish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
)

// Codes of faults, as power.Controller names them.
const (
	codeCredentials = "bmc-credentials"
	codeCertificate = "bmc-certificate"
	codeUnsupported = "bmc-unsupported"
	codeRefused     = "bmc-refused"
	codeUnreachable = "bmc-unreachable"
	codeNonsense    = "bmc-nonsense"
)

const (
	root = "/redfish/v1/"
	// maxBody bounds what a BMC may answer, in bytes.
	maxBody = 8 << 20
	// maxMembers bounds what is read of one collection.
	maxMembers = 512
	// busyTries is how often a read is tried again that a BMC is too busy for.
	busyTries = 4
)

// Options say which BMC, who we are, and how we know that it is the right one.
type Options struct {
	URL            string // https://host[:port]
	User, Password string
	// Pin is the SHA-256 of the certificate's DER; BMCs make their own certificates. Empty: Roots decide.
	Pin   []byte
	Roots *x509.CertPool // nil: the system's
	// System is the path of the machine's ComputerSystem; "": the BMC's only one.
	System string
	// Timeout bounds one exchange; 0: 20 s. Slow BMCs take many seconds over a POST.
	Timeout time.Duration
	// Pause is the first pause before something is asked again, e.g. how a task is; 0: 500 ms. It doubles up to 16 times that.
	Pause time.Duration
}

// Client is a logged-in BMC. It is not safe for concurrent use.
type Client struct {
	o       Options
	base    *url.URL
	http    *http.Client
	token   string // of the session; "" with basic authentication
	session string // path of the session
	system  string // path of the ComputerSystem
}

// Open logs in: by a session, or, where the BMC has none to give, by basic authentication.
func Open(ctx context.Context, o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil {
		return nil, fault.New(fault.Invalid, "bmc-address", "a BMC's address is https://host[:port], with no name or password in it")
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = 500 * time.Millisecond
	}
	c := &Client{o: o, base: base, system: o.System, http: &http.Client{
		Transport: &http.Transport{TLSClientConfig: trust(o), DisableCompression: true, MaxIdleConns: 1, ResponseHeaderTimeout: o.Timeout, Proxy: nil},
		Timeout:   o.Timeout,
		// A BMC that sends us elsewhere would get our credentials there.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if err := c.logIn(ctx); err != nil {
		c.http.CloseIdleConnections()
		return nil, err
	}
	return c, nil
}

// errWrongCertificate says that the BMC's certificate is not the pinned one.
var errWrongCertificate = errors.New("its certificate is not the one that was pinned")

func trust(o Options) *tls.Config {
	if len(o.Pin) == 0 {
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots}
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection below compares the whole certificate instead, on resumed sessions too
		VerifyConnection: func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(sum[:], o.Pin) != 1 {
				return errWrongCertificate
			}
			return nil
		},
	}
}

func (c *Client) logIn(ctx context.Context) error {
	c.token, c.session = "", ""
	body := map[string]string{"UserName": c.o.User, "Password": c.o.Password}
	answer, err := c.exchange(ctx, http.MethodPost, root+"SessionService/Sessions", body, nil)
	if err != nil {
		return err
	}
	switch {
	case answer.status/100 == 2 && answer.header.Get("X-Auth-Token") != "":
		c.token = answer.header.Get("X-Auth-Token")
		c.session = c.local(answer.header.Get("Location"))
		return nil
	case answer.status == http.StatusUnauthorized || answer.status == http.StatusForbidden:
		return answer.fault("log in")
	}
	// No session service, or no place left in it. Basic authentication is each request's own.
	return c.get(ctx, root+"Systems", nil)
}

// Close implements power.Controller.
func (c *Client) Close(ctx context.Context) error {
	defer c.http.CloseIdleConnections()
	if c.session == "" {
		return nil
	}
	answer, err := c.exchange(ctx, http.MethodDelete, c.session, nil, nil)
	c.token, c.session = "", ""
	if err != nil || answer.status/100 == 2 || answer.status == http.StatusNotFound {
		return err
	}
	return answer.fault("log out")
}

// answer is what a BMC said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// exchange sends one request and reads the whole answer, whatever its status.
func (c *Client) exchange(ctx context.Context, method, path string, body any, header map[string]string) (*answer, error) {
	request, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, unreachable(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to the end, or is given up
	data, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, unreachable(err)
	}
	if len(data) > maxBody {
		return nil, fault.New(fault.Unavailable, codeNonsense, "the BMC answered more than %d bytes", maxBody)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: data}, nil
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request to BMC: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	target, err := c.base.Parse(path)
	if err != nil || target.Host != c.base.Host || target.Scheme != c.base.Scheme {
		return nil, fault.New(fault.Unavailable, codeNonsense, "the BMC names %q, which is not on it", path)
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("make request to BMC: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("OData-Version", "4.0")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	switch {
	case c.token != "":
		request.Header.Set("X-Auth-Token", c.token)
	case !strings.HasSuffix(path, "/SessionService/Sessions"):
		request.SetBasicAuth(c.o.User, c.o.Password)
	}
	return request, nil
}

// do is exchange that logs in again once when the session has ended meanwhile.
func (c *Client) do(ctx context.Context, method, path string, body any, header map[string]string) (*answer, error) {
	had := c.token
	answer, err := c.exchange(ctx, method, path, body, header)
	if err != nil || answer.status != http.StatusUnauthorized || had == "" {
		return answer, err
	}
	if err := c.logIn(ctx); err != nil {
		return nil, err
	}
	return c.exchange(ctx, method, path, body, header)
}

// get reads a resource into v, which may be nil, and tries again while the BMC says that it is busy.
func (c *Client) get(ctx context.Context, path string, v any) error {
	_, err := c.read(ctx, path, v)
	return err
}

func (c *Client) read(ctx context.Context, path string, v any) (*answer, error) {
	pause := c.o.Pause
	for try := 1; ; try++ {
		answer, err := c.do(ctx, http.MethodGet, path, nil, nil)
		if err != nil {
			return nil, err
		}
		if answer.busy() && try < busyTries {
			if err := wait(ctx, answer.retryAfter(pause)); err != nil {
				return nil, err
			}
			pause *= 2
			continue
		}
		if answer.status != http.StatusOK {
			return nil, answer.fault("read " + path)
		}
		if v == nil {
			return answer, nil
		}
		if err := json.Unmarshal(answer.body, v); err != nil {
			return nil, fault.New(fault.Unavailable, codeNonsense, "the BMC's %s cannot be read: %w", path, err)
		}
		return answer, nil
	}
}

func (a *answer) busy() bool {
	return a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests
}

// retryAfter is how long the BMC wants to be left alone, within reason.
func (a *answer) retryAfter(otherwise time.Duration) time.Duration {
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return otherwise
	}
	return min(time.Duration(seconds)*time.Second, 8*otherwise)
}

// fault turns a status that is no success into a fault, with the BMC's own words.
func (a *answer) fault(what string) error {
	words := a.words()
	switch {
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return fault.New(fault.Forbidden, codeCredentials, "%s: the BMC refuses our log-in%s", what, words)
	case a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed || a.status == http.StatusNotImplemented:
		return fault.New(fault.Invalid, codeUnsupported, "%s: the BMC does not have it (%d)%s", what, a.status, words)
	case a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout:
		return fault.New(fault.Unavailable, codeUnreachable, "%s: the BMC is in trouble (%d)%s", what, a.status, words)
	default:
		return fault.New(fault.Conflict, codeRefused, "%s: the BMC refuses (%d)%s", what, a.status, words)
	}
}

// words are the BMC's, as Redfish lays them out; "" when there are none.
func (a *answer) words() string {
	var problem struct {
		Error struct {
			Message  string `json:"message"`
			Extended []struct {
				Message string `json:"Message"` //nolint:tagliatelle // Redfish's
			} `json:"@Message.ExtendedInfo"` //nolint:tagliatelle // Redfish's
		} `json:"error"`
	}
	if json.Unmarshal(a.body, &problem) != nil {
		return ""
	}
	words := problem.Error.Message
	if len(problem.Error.Extended) > 0 && problem.Error.Extended[0].Message != "" {
		words = problem.Error.Extended[0].Message
	}
	if words == "" {
		return ""
	}
	const most = 300
	if len(words) > most {
		words = words[:most] + "…"
	}
	return ": " + strings.ToValidUTF8(words, "�")
}

func unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	if errors.Is(err, errWrongCertificate) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid) {
		return fault.New(fault.Forbidden, codeCertificate, "the BMC cannot prove who it is: %w", err)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fault.New(fault.Unavailable, codeUnreachable, "the BMC did not answer in time: %w", err)
	}
	return fault.New(fault.Unavailable, codeUnreachable, "the BMC cannot be reached: %w", err)
}

// local makes a path of a link that a BMC gave, which may be a whole URL; "" when it leads elsewhere.
func (c *Client) local(link string) string {
	target, err := c.base.Parse(link)
	if link == "" || err != nil || target.Host != c.base.Host {
		return ""
	}
	return target.EscapedPath()
}

// wait pauses until the time has passed or ctx ends.
func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Unavailable, codeUnreachable, "the BMC was not ready in time: %w", ctx.Err())
	}
}
