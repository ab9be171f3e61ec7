package tenant

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // what authenticator apps compute (RFC 6238); HMAC does not need collision resistance
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// SecondFactor is a person's one-time passwords (RFC 6238: SHA-1, six digits, 30 seconds, as all apps have it).
type SecondFactor struct {
	User        ids.User
	Secret      []byte    // sealed
	ConfirmedAt time.Time // zero: begun, and of no effect
	LastStep    int64     // of the last code that was taken: each is good once
	CreatedAt   time.Time
}

// SecondFactors keeps second factors, for the platform.
type SecondFactors interface {
	// SecondFactorForUpdate locks it; NotFound for none.
	SecondFactorForUpdate(ctx context.Context, user ids.User) (SecondFactor, error)
	PutSecondFactor(ctx context.Context, factor SecondFactor) error
	// DeleteSecondFactor takes the recovery codes away too.
	DeleteSecondFactor(ctx context.Context, user ids.User) error
	SetRecoveryCodes(ctx context.Context, user ids.User, hashes [][]byte) error
	// UseRecoveryCode takes a code away, and reports whether it was there.
	UseRecoveryCode(ctx context.Context, user ids.User, hash []byte) (bool, error)
	// StrengthenSession notes that the session has shown a second factor.
	StrengthenSession(ctx context.Context, id ids.Session) error
}

// Vault seals secrets that must be read again.
type Vault interface {
	Seal(secret []byte, about string) []byte
	Unseal(sealed []byte, about string) ([]byte, error)
}

const (
	totpBytes     = 20
	totpPeriod    = 30
	totpDigits    = 6
	recoveryCodes = 10
)

// totp is the code of a step.
func totp(secret []byte, step int64) string {
	mac := hmac.New(sha1.New, secret)
	_ = binary.Write(mac, binary.BigEndian, step) // a hash never fails
	sum := mac.Sum(nil)
	offset := sum[len(sum)-1] & 0xf
	return fmt.Sprintf("%0*d", totpDigits, binary.BigEndian.Uint32(sum[offset:])&0x7fffffff%1_000_000)
}

// stepOf finds the step that the code is of: the present one, or the one before or after, since clocks differ. It must be later than the last.
func stepOf(secret []byte, code string, now time.Time, last int64) (int64, bool) {
	present := now.Unix() / totpPeriod
	for _, step := range []int64{present, present - 1, present + 1} {
		if step > last && subtle.ConstantTimeCompare([]byte(totp(secret, step)), []byte(code)) == 1 {
			return step, true
		}
	}
	return 0, false
}

// BeginSecondFactor draws a secret for the actor's authenticator app, and returns it with the address that such apps read. Nothing is asked for
// until it is confirmed. Conflict when there is one already, and for an API key.
func (s *Service) BeginSecondFactor(ctx context.Context) (secret, address string, err error) { //nolint:nonamedreturns // which is which
	actor, err := mustBePerson(ctx)
	if err != nil {
		return "", "", err
	}
	raw := make([]byte, totpBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", "", fmt.Errorf("draw secret: %w", err)
	}
	var user User
	err = s.tx.WithinTx(AsPlatform(ctx), func(ctx context.Context) error {
		found, err := s.factors.SecondFactorForUpdate(ctx, actor.User)
		if err == nil && !found.ConfirmedAt.IsZero() {
			return fault.New(fault.Conflict, "second-factor-exists", "you have a second factor already; remove it first")
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if user, err = s.accounts.User(ctx, actor.User); err != nil {
			return err
		}
		return s.factors.PutSecondFactor(ctx, SecondFactor{User: actor.User, Secret: s.options.Vault.Seal(raw, actor.User.String()), CreatedAt: s.clock.Now()})
	})
	if err != nil {
		return "", "", fmt.Errorf("begin second factor: %w", err)
	}
	if err := s.noted(ctx, actor, "second_factor.begun"); err != nil {
		return "", "", err
	}
	secret = base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw)
	label := url.PathEscape("Leasehold:" + user.Email)
	return secret, "otpauth://totp/" + label + "?" + url.Values{"secret": {secret}, "issuer": {"Leasehold"}}.Encode(), nil
}

func mustBePerson(ctx context.Context) (Actor, error) {
	actor, err := MustAct(ctx)
	if err == nil && actor.Session.IsZero() {
		return Actor{}, fault.New(fault.Conflict, "not-a-session", "only a person can do that, not an API key")
	}
	return actor, err
}

// noted writes the audit log in the transaction at hand; what it is about is a person's, whatever organization they act for.
func (s *Service) noted(ctx context.Context, actor Actor, action string) error {
	actor.Platform = true
	return s.tx.WithinTx(ctx, func(ctx context.Context) error {
		return s.audit.Record(WithActor(ctx, actor), action, actor.User.String(), nil, nil)
	})
}

// ConfirmSecondFactor takes the first code, and returns recovery codes, each of which replaces one code when the app is lost. From now on log-ins
// ask for a code. Unauthenticated for a wrong one.
func (s *Service) ConfirmSecondFactor(ctx context.Context, code string) ([]string, error) {
	actor, err := mustBePerson(ctx)
	if err != nil {
		return nil, err
	}
	codes, hashes, err := drawRecoveryCodes()
	if err != nil {
		return nil, err
	}
	err = s.tx.WithinTx(AsPlatform(ctx), func(ctx context.Context) error {
		found, err := s.factors.SecondFactorForUpdate(ctx, actor.User)
		if err == nil && !found.ConfirmedAt.IsZero() {
			return fault.New(fault.Conflict, "second-factor-exists", "you have a second factor already; remove it first")
		}
		if err != nil {
			return err
		}
		if err := s.takeCode(ctx, found, code, s.clock.Now()); err != nil {
			return err
		}
		if err := s.factors.SetRecoveryCodes(ctx, actor.User, hashes); err != nil {
			return err
		}
		return s.factors.StrengthenSession(ctx, actor.Session)
	})
	if err != nil {
		return nil, fmt.Errorf("confirm second factor: %w", err)
	}
	s.standings.forget(actor.Session)
	return codes, s.noted(ctx, actor, "second_factor.confirmed")
}

// takeCode accepts a code of the app, and confirms the factor.
func (s *Service) takeCode(ctx context.Context, f SecondFactor, code string, now time.Time) error {
	secret, err := s.options.Vault.Unseal(f.Secret, f.User.String())
	if err != nil {
		return err
	}
	step, ok := stepOf(secret, strings.TrimSpace(code), now, f.LastStep)
	if !ok {
		return errWrongCode()
	}
	f.LastStep = step
	if f.ConfirmedAt.IsZero() {
		f.ConfirmedAt = now
	}
	return s.factors.PutSecondFactor(ctx, f)
}

func errWrongCode() error {
	return fault.New(fault.Unauthenticated, "wrong-code", "the code is wrong, or was used already; wait for the next one")
}

func drawRecoveryCodes() ([]string, [][]byte, error) {
	codes, hashes := make([]string, recoveryCodes), make([][]byte, recoveryCodes)
	for i := range codes {
		raw := make([]byte, 10) // 80 bits
		if _, err := rand.Read(raw); err != nil {
			return nil, nil, fmt.Errorf("draw recovery code: %w", err)
		}
		text := secretEncoding().EncodeToString(raw)
		codes[i], hashes[i] = text[:8]+"-"+text[8:], hashToken(text)
	}
	return codes, hashes, nil
}

// RemoveSecondFactor takes the factor away, with a code or a recovery code.
func (s *Service) RemoveSecondFactor(ctx context.Context, code string) error {
	actor, err := mustBePerson(ctx)
	if err != nil {
		return err
	}
	err = s.tx.WithinTx(AsPlatform(ctx), func(ctx context.Context) error {
		if err := s.showFactor(ctx, actor.User, code); err != nil {
			return err
		}
		return s.factors.DeleteSecondFactor(ctx, actor.User)
	})
	if err != nil {
		return fmt.Errorf("remove second factor: %w", err)
	}
	return s.noted(ctx, actor, "second_factor.removed")
}

// showFactor takes a code or a recovery code of somebody who has a second factor; NotFound for who has none.
func (s *Service) showFactor(ctx context.Context, user ids.User, code string) error {
	found, err := s.factors.SecondFactorForUpdate(ctx, user)
	if err != nil {
		return err
	}
	if found.ConfirmedAt.IsZero() {
		return fault.New(fault.NotFound, "not-found", "there is no second factor")
	}
	code = strings.ToLower(strings.NewReplacer("-", "", " ", "").Replace(code))
	if len(code) == totpDigits {
		return s.takeCode(ctx, found, code, s.clock.Now())
	}
	used, err := s.factors.UseRecoveryCode(ctx, user, hashToken(code))
	if err != nil {
		return err
	}
	if !used {
		return errWrongCode()
	}
	return nil
}

// prove asks who logs in for the second factor, and reports whether there was one. It is part of the log-in's transaction, so that a code which
// was not enough is not used up.
func (s *Service) prove(ctx context.Context, user ids.User, code string) (bool, error) {
	found, err := s.factors.SecondFactorForUpdate(ctx, user)
	if fault.Is(err, fault.NotFound) || err == nil && found.ConfirmedAt.IsZero() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if code == "" {
		return false, fault.New(fault.Unauthenticated, "second-factor-required", "send the code of your authenticator app as well, or a recovery code")
	}
	return true, s.showFactor(ctx, user, code)
}
