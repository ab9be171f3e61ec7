// Package bmc is a simulated management controller: a Redfish service over HTTPS for one machine, whose power it really switches when the
// machine is virtual. It can be told to behave as odd as BMCs do.
package bmc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Host is the machine that a BMC manages.
type Host interface {
	On() bool
	// TurnOn starts it, from the network or from its disk; exited is called when it loses power by itself.
	TurnOn(ctx context.Context, network bool, exited func(reboot bool)) error
	TurnOff(ctx context.Context) error
	// PressPower is a wish that the operating system may not hear.
	PressPower(ctx context.Context) error
}

// Oddity is a way in which BMCs differ from the specification, or from the truth.
type Oddity string

// The oddities.
const (
	NoResetTypes   Oddity = "no_reset_types"   // which resets are allowed is not said
	ResetTypesInfo Oddity = "reset_types_info" // it is said in an ActionInfo only
	EmptyBodies    Oddity = "empty_bodies"     // answers to POST and PATCH have no body
	Tasks          Oddity = "tasks"            // resets are answered by 202 and a task
	FailingTasks   Oddity = "failing_tasks"    // whose tasks fail
	Slow           Oddity = "slow"             // every answer takes a while
	RefusesOff     Oddity = "refuses_off"      // will not cut the power
	Lies           Oddity = "lies"             // takes every reset and does nothing
	WantsEtag      Oddity = "wants_etag"       // a PATCH without If-Match is refused
	NoEtag         Oddity = "no_etag"          // there are no entity tags
	NoSessions     Oddity = "no_sessions"      // basic authentication only
	LosesSessions  Oddity = "loses_sessions"   // a session ends after a few requests
	Busy           Oddity = "busy"             // every other read is answered by 503
	IgnoresBoot    Oddity = "ignores_boot"     // takes a boot override and forgets it
)

// Config is what a BMC is made of.
type Config struct {
	Name           string
	UUID           string
	Serial         string
	MAC            string
	User, Password string
	Host           Host
	Now            func() time.Time
	// Pause is how long the slow oddity takes over an answer.
	Pause time.Duration
	Log   *slog.Logger
}

// Controller is one simulated BMC. It is safe for concurrent use.
type Controller struct {
	cfg  Config
	cert tls.Certificate

	mu       sync.Mutex
	odd      map[Oddity]bool
	boot     bootOverride
	version  int // of the system resource, for its entity tag
	events   []event
	sessions map[string]*session
	tasks    map[string]int // how often each was looked at
	reads    int
	power    sync.Mutex // one switch at a time
}

// bootOverride is what the next boot, or every boot, uses instead of the disk.
type bootOverride struct {
	Enabled string // Disabled, Once, Continuous
	Target  string // None, Pxe, Hdd
}

type event struct {
	at       time.Time
	severity string
	message  string
}

type session struct {
	token string
	uses  int
}

// maxEvents bounds the event log, as real ones are bounded.
const maxEvents = 1000

// New makes a BMC with a certificate of its own.
func New(cfg Config) (*Controller, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Pause == 0 {
		cfg.Pause = 200 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cert, err := selfSigned(cfg.Name, cfg.Now())
	if err != nil {
		return nil, err
	}
	return &Controller{
		cfg: cfg, cert: cert, odd: map[Oddity]bool{}, boot: bootOverride{"Disabled", "None"}, version: 1, sessions: map[string]*session{}, tasks: map[string]int{},
	}, nil
}

func selfSigned(name string, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make BMC's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make BMC's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Certificate is the BMC's own, in DER.
func (c *Controller) Certificate() []byte { return c.cert.Certificate[0] }

// Pin is the SHA-256 of the certificate.
func (c *Controller) Pin() [sha256.Size]byte { return sha256.Sum256(c.Certificate()) }

// Serve answers on the listener until ctx ends.
func (c *Controller) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: c.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.cfg.Log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) //nolint:errcheck // it ends in any case
	defer stop()
	secure := tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c.cert}})
	if err := server.Serve(secure); ctx.Err() == nil {
		return fmt.Errorf("serve BMC of %s: %w", c.cfg.Name, err)
	}
	return nil
}

// Behave makes the BMC odd in exactly these ways.
func (c *Controller) Behave(oddities ...Oddity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.odd = map[Oddity]bool{}
	for _, o := range oddities {
		c.odd[o] = true
	}
}

func (c *Controller) is(o Oddity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.odd[o]
}

// note writes to the event log.
func (c *Controller) note(severity, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, event{c.cfg.Now().UTC(), severity, message})
	c.events = c.events[max(len(c.events)-maxEvents, 0):]
}

// takeBoot says whether this boot is from the network, and uses up an override that is for one boot.
func (c *Controller) takeBoot() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	network := c.boot.Enabled != "Disabled" && c.boot.Target == "Pxe"
	if c.boot.Enabled == "Once" {
		c.boot = bootOverride{"Disabled", "None"}
		c.version++
	}
	return network
}

// turnOn starts the machine, and starts it again whenever it reboots by itself.
func (c *Controller) turnOn(ctx context.Context) error {
	network := c.takeBoot()
	from := "disk"
	if network {
		from = "network"
	}
	err := c.cfg.Host.TurnOn(ctx, network, func(reboot bool) {
		c.note("OK", "the machine lost power by itself, reboot "+strconv.FormatBool(reboot))
		if !reboot {
			return
		}
		c.power.Lock()
		defer c.power.Unlock()
		if err := c.turnOn(context.WithoutCancel(ctx)); err != nil {
			c.note("Critical", "the machine could not be started again: "+err.Error())
		}
	})
	if err != nil {
		return fmt.Errorf("turn on: %w", err)
	}
	c.note("OK", "power on, boot from "+from)
	return nil
}

func (c *Controller) turnOff(ctx context.Context) error {
	if err := c.cfg.Host.TurnOff(ctx); err != nil {
		return fmt.Errorf("turn off: %w", err)
	}
	c.note("OK", "power off")
	return nil
}
