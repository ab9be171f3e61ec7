package tenant

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
)

// Transactor runs fn in one transaction, which the context carries to the stores.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Accounts keeps organizations, people and who belongs where.
type Accounts interface {
	CreateOrganization(ctx context.Context, org Organization) error
	// Organization answers NotFound for a missing one and for another organization's.
	Organization(ctx context.Context, id ids.Org) (Organization, error)
	// OrganizationByName answers NotFound for a missing one.
	OrganizationByName(ctx context.Context, name string) (Organization, error)
	Organizations(ctx context.Context, page Page[ids.Org]) ([]Organization, error)
	CreateUser(ctx context.Context, user User) error
	// User and UserByEmail answer NotFound for a missing one.
	User(ctx context.Context, id ids.User) (User, error)
	UserByEmail(ctx context.Context, email string) (User, error)
	SetPasswordHash(ctx context.Context, id ids.User, hash string) error
	// AddMembership leaves an existing one alone.
	AddMembership(ctx context.Context, m Membership, at time.Time) error
	// Memberships lists a person's memberships, the oldest first.
	Memberships(ctx context.Context, user ids.User) ([]Membership, error)
}

// Projects keeps projects.
type Projects interface {
	CreateProject(ctx context.Context, project Project) error
	// Project answers NotFound for a missing one and for another organization's.
	Project(ctx context.Context, id ids.Project) (Project, error)
	// ProjectByName answers NotFound for a missing one.
	ProjectByName(ctx context.Context, org ids.Org, name string) (Project, error)
	Projects(ctx context.Context, org ids.Org, page Page[ids.Project]) ([]Project, error)
}

// Sessions keeps sessions.
type Sessions interface {
	CreateSession(ctx context.Context, session Session) error
	// SessionByToken finds the session that has or had the refresh token, and locks its row; NotFound if none.
	SessionByToken(ctx context.Context, hash []byte) (Session, RefreshToken, error)
	AddToken(ctx context.Context, session Session, token RefreshToken) error
	// RetireTokens retires the traded token, and those of the session that were made before the instant; an earlier retirement's time stays.
	RetireTokens(ctx context.Context, session ids.Session, traded []byte, madeBefore, at time.Time) error
	UpdateSession(ctx context.Context, session Session) error
	// Session answers NotFound for a missing one.
	Session(ctx context.Context, id ids.Session) (Session, error)
	RevokeSession(ctx context.Context, id ids.Session, at time.Time) error
}

// APIKeys keeps API keys.
type APIKeys interface {
	CreateAPIKey(ctx context.Context, key APIKey) error
	// APIKey answers NotFound for a missing one and for another organization's.
	APIKey(ctx context.Context, id ids.APIKey) (APIKey, error)
	// APIKeys lists newest first; those of one project, unless that is zero.
	APIKeys(ctx context.Context, org ids.Org, project ids.Project, page Page[ids.APIKey]) ([]APIKey, error)
	// Credential returns the key with what decides its rights now; NotFound when it is missing or its maker has left.
	Credential(ctx context.Context, id ids.APIKey) (Credential, error)
	// RotateAPIKey writes the key's secrets.
	RotateAPIKey(ctx context.Context, key APIKey) error
	// RevokeAPIKey keeps an earlier revocation's time.
	RevokeAPIKey(ctx context.Context, id ids.APIKey, at time.Time) error
	TouchAPIKey(ctx context.Context, id ids.APIKey, at time.Time) error
}

// SSHKeys keeps SSH keys.
type SSHKeys interface {
	// CreateSSHKey answers Conflict when the organization has the key already.
	CreateSSHKey(ctx context.Context, key SSHKey) error
	// SSHKeysByID answers those that exist and are the organization's own.
	SSHKeysByID(ctx context.Context, org ids.Org, keys []ids.SSHKey) ([]SSHKey, error)
	// SSHKeys lists newest first.
	SSHKeys(ctx context.Context, org ids.Org, page Page[ids.SSHKey]) ([]SSHKey, error)
	// DeleteSSHKey answers NotFound for a missing one and for another organization's.
	DeleteSSHKey(ctx context.Context, id ids.SSHKey) error
}

// Store is everything that the service keeps.
type Store interface {
	Accounts
	Projects
	Sessions
	APIKeys
	SSHKeys
	People
	Invitations
	Groups
	ServiceAccounts
	SecondFactors
	Policies
	DeviceGrants
	Identities
}

// Tokens signs and verifies access tokens.
type Tokens interface {
	// Sign makes the token that proves the claims until they expire.
	Sign(claims Claims) (string, error)
	// Verify answers Unauthenticated for anything but a token of ours that is valid now.
	Verify(ctx context.Context, token string) (Claims, error)
}

// Recorder writes the audit log in the transaction that ctx carries.
type Recorder interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Options are the service's settings; the zero value is good for production.
type Options struct {
	Environment string        // the part of an API key that tells people where it is valid, e.g. live; default "live"
	AccessTTL   time.Duration // default 15 min
	RefreshTTL  time.Duration // default 30 days, from the last refresh
	Password    PasswordCost
	// Vault seals the secrets of one-time passwords; nil: nobody can set them up.
	Vault Vault
	// AdminsNeedSecondFactor keeps owners and admins out, but for setting one up, until they have a second factor.
	AdminsNeedSecondFactor bool
}

// Service is the identity service.
type Service struct {
	tx       Transactor
	accounts Accounts
	projects Projects
	sessions Sessions
	apiKeys  APIKeys
	sshKeys  SSHKeys

	people      People
	invitations Invitations
	groups      Groups
	services    ServiceAccounts
	factors     SecondFactors
	policies    Policies
	devices     DeviceGrants
	identities  Identities
	standings   *standings

	tokens    Tokens
	audit     Recorder
	clock     clock.Clock
	passwords *passwords
	options   Options
}

// Now is the service's time.
func (s *Service) Now() time.Time { return s.clock.Now() }

// New returns the identity service.
func New(tx Transactor, store Store, tokens Tokens, audit Recorder, clock clock.Clock, options Options) (*Service, error) {
	if options.Environment == "" {
		options.Environment = "live"
	}
	if options.AccessTTL == 0 {
		options.AccessTTL = 15 * time.Minute
	}
	if options.RefreshTTL == 0 {
		options.RefreshTTL = 30 * 24 * time.Hour
	}
	hasher, err := newPasswords(options.Password)
	if err != nil {
		return nil, err
	}
	return &Service{
		tx: tx, accounts: store, projects: store, sessions: store, apiKeys: store, sshKeys: store,
		people: store, invitations: store, groups: store, services: store, factors: store, policies: store, devices: store, identities: store, standings: newStandings(),
		tokens: tokens, audit: audit, clock: clock, passwords: hasher, options: options,
	}, nil
}
