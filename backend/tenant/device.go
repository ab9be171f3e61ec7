package tenant

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// DeviceState is how far a program's wish to act for somebody is.
type DeviceState string

// The states.
const (
	DevicePending  DeviceState = "pending"
	DeviceApproved DeviceState = "approved"
	DeviceDenied   DeviceState = "denied"
	DeviceUsed     DeviceState = "used"
)

// DeviceGrant is a program's wish to act for somebody, on a machine without a browser (RFC 8628).
type DeviceGrant struct {
	ID           ids.Device
	DeviceHash   []byte
	UserCode     string // as XXXX-XXXX
	Client       string // what the program calls itself
	Source       string // the address that it asked from
	State        DeviceState
	Org          ids.Org // of the session in which it was decided
	User         ids.User
	SecondFactor bool // that session had shown one
	CreatedAt    time.Time
	ExpiresAt    time.Time
	PolledAt     time.Time
}

// DeviceGrants keeps such wishes, for the platform.
type DeviceGrants interface {
	CreateDeviceGrant(ctx context.Context, grant DeviceGrant) error
	// DeviceGrantByHash and DeviceGrantByCode lock it; NotFound for none.
	DeviceGrantByHash(ctx context.Context, hash []byte) (DeviceGrant, error)
	DeviceGrantByCode(ctx context.Context, code string) (DeviceGrant, error)
	UpdateDeviceGrant(ctx context.Context, grant DeviceGrant) error
}

const (
	// DeviceLife is how long somebody has to approve.
	DeviceLife = 10 * time.Minute
	// DeviceInterval is how long a program waits between two questions.
	DeviceInterval = 5 * time.Second

	devicePrefix  = "lhdev_"
	codeLetters   = "BCDFGHJKLMNPQRSTVWXZ" // no vowels, so no words (RFC 8628, section 6.1)
	codeLength    = 8
	maxClientName = 100
)

// StartDevice begins a program's wish, and returns what the program proves itself by; nobody can show it again.
func (s *Service) StartDevice(ctx context.Context, client string) (DeviceGrant, string, error) {
	token, err := drawToken(devicePrefix)
	if err != nil {
		return DeviceGrant{}, "", err
	}
	code, err := drawUserCode()
	if err != nil {
		return DeviceGrant{}, "", err
	}
	now, source := s.clock.Now(), ""
	if address := sourceFrom(ctx); address.IsValid() {
		source = address.String()
	}
	grant := DeviceGrant{
		ID: ids.Make[ids.Device](), DeviceHash: hashToken(token), UserCode: code, Client: cut(client, maxClientName), Source: source, State: DevicePending,
		CreatedAt: now, ExpiresAt: now.Add(DeviceLife),
	}
	err = s.tx.WithinTx(AsPlatform(ctx), func(ctx context.Context) error { return s.devices.CreateDeviceGrant(ctx, grant) })
	if err != nil {
		return DeviceGrant{}, "", fmt.Errorf("start device log-in: %w", err)
	}
	return grant, token, nil
}

func drawUserCode() (string, error) {
	letters := make([]byte, 0, codeLength+1)
	var raw [1]byte
	for len(letters) < codeLength {
		if _, err := rand.Read(raw[:]); err != nil {
			return "", fmt.Errorf("draw code: %w", err)
		}
		if int(raw[0]) < 256/len(codeLetters)*len(codeLetters) { // each letter as likely as the others
			letters = append(letters, codeLetters[int(raw[0])%len(codeLetters)])
		}
	}
	return string(letters[:4]) + "-" + string(letters[4:]), nil
}

// normalizeCode forgives what people type.
func normalizeCode(text string) string {
	letters := strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(text))
	if len(letters) != codeLength {
		return ""
	}
	return letters[:4] + "-" + letters[4:]
}

func errNoDevice() error {
	return fault.New(fault.NotFound, "device-code-not-found", "there is no such code, or it is over; start again on the device")
}

// Device reads what asks under a code, for whoever decides. NotFound once it is decided or over.
func (s *Service) Device(ctx context.Context, code string) (DeviceGrant, error) {
	if _, err := mustBePerson(ctx); err != nil {
		return DeviceGrant{}, err
	}
	var grant DeviceGrant
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		grant, err = s.openDevice(ctx, code)
		return err
	})
	if err != nil {
		return DeviceGrant{}, fmt.Errorf("read device log-in: %w", err)
	}
	return grant, nil
}

func (s *Service) openDevice(ctx context.Context, code string) (DeviceGrant, error) {
	grant, err := s.devices.DeviceGrantByCode(ctx, normalizeCode(code))
	if fault.Is(err, fault.NotFound) || err == nil && (grant.State != DevicePending || !s.clock.Now().Before(grant.ExpiresAt)) {
		return DeviceGrant{}, errNoDevice()
	}
	return grant, err
}

// DecideDevice lets a program act for the actor, in the organization of the actor's session, or refuses it.
func (s *Service) DecideDevice(ctx context.Context, code string, approve bool) error {
	actor, err := mustBePerson(ctx)
	if err != nil {
		return err
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		grant, err := s.openDevice(ctx, code)
		if err != nil {
			return err
		}
		action := "device.denied"
		grant.State, grant.Org, grant.User, grant.SecondFactor = DeviceDenied, actor.Org, actor.User, actor.SecondFactor
		if approve {
			grant.State, action = DeviceApproved, "device.approved"
		}
		if err := s.devices.UpdateDeviceGrant(ctx, grant); err != nil {
			return err
		}
		return s.audit.Record(ctx, action, grant.ID.String(), nil, map[string]any{"client": grant.Client, "source": grant.Source})
	})
	if err != nil {
		return fmt.Errorf("decide device log-in: %w", err)
	}
	return nil
}

// ClaimDevice gives the program its session once somebody has approved: once. Until then Conflict, code "authorization-pending", or Exhausted, code
// "slow-down", when it asks too often; Forbidden, code "access-denied"; Expired when it is over.
func (s *Service) ClaimDevice(ctx context.Context, token, userAgent string) (Grant, error) {
	ctx = AsPlatform(ctx)
	var grant Grant
	var pending error // commits the time of the question
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		found, err := s.devices.DeviceGrantByHash(ctx, hashToken(token))
		if err != nil {
			return err
		}
		now := s.clock.Now()
		switch {
		case !now.Before(found.ExpiresAt), found.State == DeviceUsed:
			return fault.New(fault.Expired, "device-code-expired", "the code is over; start again")
		case found.State == DeviceDenied:
			return fault.New(fault.Forbidden, "access-denied", "it was refused")
		case found.State == DevicePending:
			pending = fault.New(fault.Conflict, "authorization-pending", "nobody has approved yet; ask again in %s", DeviceInterval)
			if now.Sub(found.PolledAt) < DeviceInterval {
				pending = fault.New(fault.Exhausted, "slow-down", "ask every %s at most", DeviceInterval).With("retry_after_seconds", int(DeviceInterval/time.Second))
			}
			found.PolledAt = now
			return s.devices.UpdateDeviceGrant(ctx, found)
		}
		found.State = DeviceUsed
		if err := s.devices.UpdateDeviceGrant(ctx, found); err != nil {
			return err
		}
		user, err := s.accounts.User(ctx, found.User)
		if err != nil || !user.DisabledAt.IsZero() {
			return errSessionEnded()
		}
		grant, err = s.openSession(ctx, user, found.Org, userAgent, found.SecondFactor, map[string]any{"by": "device", "client": found.Client})
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound):
		return Grant{}, fault.New(fault.Expired, "device-code-expired", "the code is over; start again")
	case err != nil:
		return Grant{}, fmt.Errorf("claim device log-in: %w", err)
	default:
		return grant, pending
	}
}

// openSession makes a session for somebody who has proved who they are otherwise than by a password, within the transaction of ctx.
func (s *Service) openSession(ctx context.Context, user User, org ids.Org, userAgent string, strong bool, how map[string]any) (Grant, error) {
	token, hash, err := newRefreshToken()
	if err != nil {
		return Grant{}, err
	}
	member, err := s.member(ctx, user.ID, org)
	if err != nil {
		return Grant{}, err
	}
	now := s.clock.Now()
	session := Session{
		ID: ids.Make[ids.Session](), Org: member.Org, User: user.ID, RefreshHash: hash, UserAgent: cut(userAgent, maxUserAgent), CreatedAt: now, RefreshedAt: now,
		ExpiresAt: now.Add(s.options.RefreshTTL), SecondFactor: strong,
	}
	if err := s.sessions.CreateSession(ctx, session); err != nil {
		return Grant{}, err
	}
	if err := s.sessions.AddToken(ctx, session, RefreshToken{Hash: hash, CreatedAt: now}); err != nil {
		return Grant{}, err
	}
	grant, err := s.grant(ctx, session, user, member, token)
	if err != nil {
		return Grant{}, err
	}
	how["user_agent"] = session.UserAgent
	acting := grant.Me.Actor
	acting.Platform = true
	return grant, s.audit.Record(WithActor(ctx, acting), "session.created", session.ID.String(), nil, how)
}
