// Package httpapi is the REST API, and the only package that knows Gin. openapi.yaml is the contract; package api is generated
// from it. A request passes the middleware that New lists, then a handler: a method of an area that gets a context and a typed
// request, returns a typed answer or an error, and never sees Gin. routes.go says who may call what.
package httpapi

import (
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// Areas are the handlers, by tag of the contract. Each area lives in files of its own and names the services it needs as fields.
type Areas struct {
	Identity
	System
	Market
	Quotes
	Leases
	Billing
	Events
	AuditLog
	Admin
}

// server joins the areas into the generated interface: an operation without a handler does not compile.
type server struct{ Areas }

var _ api.StrictServerInterface = server{}
