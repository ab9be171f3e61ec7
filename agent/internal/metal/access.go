package metal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/imaging"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Access lets people in by the seed of their system. It implements access.Driver: while the service OS runs nobody can log in, whatever was
// granted.
type Access struct {
	Runtime *Runtime
	// SSHAddress is where a log-in is tried after a revocation; "": 127.0.0.1:22.
	SSHAddress string
}

var _ access.Driver = (*Access)(nil)

// Grant implements access.Driver. Where to log in, the tenant's system tells when it runs.
func (a *Access) Grant(_ context.Context, g access.Grant) (evidence protocol.GrantEvidence, err error) { //nolint:nonamedreturns // closing may fail too
	if g.Seed == nil {
		return protocol.GrantEvidence{}, fmt.Errorf("a machine that is leased whole needs a seed: %w", access.ErrInvalid)
	}
	device, err := a.Runtime.bootDisk()
	if err != nil {
		return protocol.GrantEvidence{}, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	seed := imaging.Seed{
		InstanceID: g.Seed.InstanceID, Hostname: g.Seed.Hostname, User: g.User, Keys: g.Keys, UserData: g.Seed.UserData, PhoneHome: g.Seed.PhoneHome,
	}
	if err := imaging.Plant(device, seed, a.Runtime.WorkDir); err != nil {
		return protocol.GrantEvidence{}, asRefusal(err)
	}
	return protocol.GrantEvidence{User: g.User, HostKeys: []string{}}, nil
}

// dialWithin bounds the try to log in.
const dialWithin = 5 * time.Second

// Revoke implements access.Driver: the tenant's system does not run, and this one has no door. It tries all the same.
func (a *Access) Revoke(ctx context.Context, _ string) (protocol.RevokeEvidence, error) {
	address := a.SSHAddress
	if address == "" {
		address = "127.0.0.1:22"
	}
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return protocol.RevokeEvidence{LoginRefused: true}, nil //nolint:nilerr // nobody listens: that is what was to be shown
	}
	return protocol.RevokeEvidence{}, connection.Close()
}

// Granted implements access.Driver.
func (a *Access) Granted(string) bool { return false }
