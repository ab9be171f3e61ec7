package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Authenticator tells who a bearer credential is; Unauthenticated when it is nobody.
type Authenticator interface {
	Authenticate(ctx context.Context, credential string) (tenant.Actor, error)
}

// authenticate puts the actor into the context. Credentials come in the Authorization header only: a cookie is never one, so that no
// other site can act with it (the refresh cookie is read by one route, which checks the origin itself).
func authenticate(who Authenticator) gin.HandlerFunc {
	return func(c *gin.Context) {
		op := operationOf(c)
		if op.permission.public {
			c.Next()
			return
		}
		scheme, credential, _ := strings.Cut(c.GetHeader("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || credential == "" {
			refuse(c, fault.New(fault.Unauthenticated, "unauthenticated", "send an access token or an API key as Authorization: Bearer"))
			return
		}
		actor, err := who.Authenticate(c.Request.Context(), strings.TrimSpace(credential))
		if err != nil {
			refuse(c, err)
			return
		}
		actor.Platform = false // decided below, and nowhere else
		setContext(c, tenant.WithActor(c.Request.Context(), actor))
		c.Next()
	}
}

// authorize looks the actor up in the table of permissions. The operator's people act for the platform on the operator's
// routes, and so do a provider's on those that are theirs too.
func authorize() gin.HandlerFunc {
	return func(c *gin.Context) {
		op := operationOf(c)
		actor, _ := tenant.ActorFrom(c.Request.Context())
		if err := op.permission.permit(actor); err != nil {
			refuse(c, err)
			return
		}
		if op.permission.operator {
			actor.Platform = true
			setContext(c, tenant.WithActor(c.Request.Context(), actor))
		}
		c.Next()
	}
}

// sameOrigin refuses a browser's request from another site (by Sec-Fetch-Site or Origin) on the routes that set or read the cookie.
func sameOrigin() gin.HandlerFunc {
	protection := http.NewCrossOriginProtection()
	return func(c *gin.Context) {
		if err := protection.Check(c.Request); err != nil {
			refuse(c, fault.New(fault.Forbidden, "cross-origin", "requests from other sites are refused"))
			return
		}
		c.Next()
	}
}
