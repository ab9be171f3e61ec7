// Package tenant has organizations, their projects and people, and what proves who is asking.
package tenant

import (
	"context"
	"net/netip"
	"slices"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Role is what somebody may do in an organization or one of its projects.
type Role string

// The roles, strongest first.
const (
	Owner   Role = "owner"
	Admin   Role = "admin"
	Member  Role = "member"
	Billing Role = "billing"
	Viewer  Role = "viewer"
)

// OrgKind says what an organization does here.
type OrgKind string

// The kinds of organization.
const (
	Customer OrgKind = "customer"
	Provider OrgKind = "provider" // owns sites; its admins may use what of /v1/admin is about those
	Operator OrgKind = "operator" // runs the platform; its admins may use all of /v1/admin
)

// Actor is who acts: a person with a session, an API key, or the platform itself. It travels in the context, and decides the
// database role of every transaction.
type Actor struct {
	Org          ids.Org
	OrgKind      OrgKind
	User         ids.User    // the key's maker, for API keys; zero for a service account's key that such a key made
	Service      ids.Service // whose key it is, for a service account's
	Session      ids.Session // zero for API keys
	APIKey       ids.APIKey  // zero for sessions
	Project      ids.Project // set: everything is limited to this project
	Role         Role
	Scopes       []string // nil for sessions: all that the role allows
	SecondFactor bool     // the session has shown one
	// Locked: the organization or the platform wants a second factor, and the session has shown none. All that it may do is set one up.
	Locked bool
	// Platform: an operator's or provider's admin on an admin route acts for the platform itself. The transaction gets the platform's
	// role, and logs and the audit still name the person. What a provider gets to see of it, the route's handler narrows.
	Platform bool
}

// Name is how logs and events call the actor, e.g. "user_01j…" or "key_01j…".
func (a Actor) Name() string {
	if !a.APIKey.IsZero() {
		return a.APIKey.String()
	}
	return a.User.String()
}

// HasScope reports whether the credential carries the scope, e.g. "leases:write".
func (a Actor) HasScope(scope string) bool {
	return a.Scopes == nil || slices.Contains(a.Scopes, scope)
}

type actorKey struct{}

type sourceKey struct{}

// WithSource returns a context whose request comes from the address.
func WithSource(ctx context.Context, source netip.Addr) context.Context {
	return context.WithValue(ctx, sourceKey{}, source)
}

// sourceFrom is the invalid address outside a request.
func sourceFrom(ctx context.Context) netip.Addr {
	source, _ := ctx.Value(sourceKey{}).(netip.Addr)
	return source
}

// WithActor returns a context in which a acts.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom returns who acts. Without one the platform itself acts: workers, agents' calls, migrations.
func ActorFrom(ctx context.Context) (Actor, bool) {
	a, ok := ctx.Value(actorKey{}).(Actor)
	return a, ok
}

// AsPlatform returns a context in which nobody's organization acts but the platform itself.
func AsPlatform(ctx context.Context) context.Context {
	return context.WithValue(ctx, actorKey{}, nil)
}

// MustAct returns the actor, or an Unauthenticated fault.
func MustAct(ctx context.Context) (Actor, error) {
	a, ok := ActorFrom(ctx)
	if !ok {
		return Actor{}, fault.New(fault.Unauthenticated, "unauthenticated", "sign in first")
	}
	return a, nil
}
