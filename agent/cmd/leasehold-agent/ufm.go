package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// ufmOptions are the flags of fabric --driver ufm. Secrets are in files, never in flags.
type ufmOptions struct {
	server     ufm.Server
	ports      []string
	acceptWord bool
}

func (o *ufmOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.server.URL, "ufm-url", "", "ufm: its address, https://host[:port]")
	f.StringVar(&o.server.CAFile, "ufm-ca-file", "", "ufm: PEM file with the authority that signed its certificate (default: the system's authorities)")
	f.StringVar(&o.server.Login.CertFile, "ufm-cert-file", "", "ufm: client certificate, PEM")
	f.StringVar(&o.server.Login.KeyFile, "ufm-key-file", "", "ufm: the client certificate's key, PEM, mode 0600")
	f.StringVar(&o.server.Login.TokenFile, "ufm-token-file", "", "ufm: file with an access token, mode 0600; read again for each call")
	f.StringVar(&o.server.Login.User, "ufm-user", "", "ufm: user's name, for basic authentication")
	f.StringVar(&o.server.Login.PasswordFile, "ufm-password-file", "", "ufm: file with the user's password, mode 0600; read again for each call")
	f.StringArrayVar(&o.ports, "ufm-port", nil, "ufm: port GUID of UFM's own host, which tells its fabric from others; twice when there is a standby")
	f.BoolVar(&o.acceptWord, "ufm-accept-word", false,
		"ufm: take its word for what the ports hold when nothing reads them (no --device); evidence says so")
	f.DurationVar(&o.server.Timeout, "ufm-timeout", 10*time.Second, "ufm: how long one call may take")
}

// driver opens the driver; client is nil when no MAD device was named.
func (o *ufmOptions) driver(stateDir string, client *smp.Client) (*ufm.Driver, error) {
	config := ufm.Config{
		Server: o.server, AcceptManagersWord: o.acceptWord, StateDir: stateDir, Patience: ufm.DefaultPatience(), Now: time.Now,
	}
	if client != nil {
		config.Ports = ufm.NewSMPReader(client)
	}
	if client == nil && !o.acceptWord {
		return nil, errors.New("--driver ufm: nothing would read the ports: name a MAD device with --device, or take UFM's word with --ufm-accept-word")
	}
	for _, text := range o.ports {
		var guid protocol.GUID
		if err := guid.UnmarshalText([]byte(text)); err != nil {
			return nil, fmt.Errorf("--ufm-port: %w", err)
		}
		config.ManagerPorts = append(config.ManagerPorts, guid)
	}
	return ufm.New(config)
}
