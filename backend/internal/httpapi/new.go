package httpapi

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/internal/idempotency"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
)

// Deps is what the API stands on.
type Deps struct {
	Areas Areas
	// Agent serves /agent/v1.
	Agent         Agent
	Authenticator Authenticator
	Tx            Transactor
	Idempotency   idempotency.Store
	RateLimits    ratelimit.Store
	Limits        Limits
	Clock         clock.Clock
	Log           *slog.Logger
	// Metrics takes the API's own metrics and serves everybody's at /metrics; nil: neither.
	Metrics *prometheus.Registry
	// Portal is the built front end, with index.html at its top; nil: none.
	Portal fs.FS
	// Pages are further pages by their path without the last element, e.g. the test gateway's stand-in for a bank. They set their own
	// policy of content.
	Pages map[string]http.Handler
	// Netboot serves machines that boot from the network, below NetbootPrefix; nil: none does.
	Netboot http.Handler
	// TrustedProxies are the addresses or networks whose X-Forwarded-For is believed; none by default.
	TrustedProxies []string
}

// NetbootPrefix is the path of what machines boot from. It is no part of the contract: iPXE and cloud-init are who reads it.
const NetbootPrefix = "/netboot/v1"

// New returns the API's handler. It fails when the contract and the table of permissions disagree.
func New(ctx context.Context, d Deps) (http.Handler, error) {
	document, err := loadContract(ctx)
	if err != nil {
		return nil, err
	}
	all, err := newOperations(document, permissions())
	if err != nil {
		return nil, fmt.Errorf("build operations: %w", err)
	}
	gin.SetMode(gin.ReleaseMode) //nolint:forbidigo // else Gin prints every route, past our log
	engine := gin.New()
	engine.ContextWithFallback = true // handlers see the request's context
	engine.HandleMethodNotAllowed = true
	engine.RedirectTrailingSlash = false
	if err := engine.SetTrustedProxies(d.TrustedProxies); err != nil {
		return nil, fmt.Errorf("trust proxies: %w", err)
	}
	observe, err := newObserver(d.Metrics)
	if err != nil {
		return nil, err
	}
	//nolint:contextcheck // middleware has its request's context, not that of the start
	engine.Use(identify(), accessLog(d.Log, d.Clock, observe), recoverPanics(d.Log), securityHeaders())
	d.routes(engine, all) //nolint:contextcheck // as above
	if err := documents(engine, document); err != nil {
		return nil, err
	}
	if d.Metrics != nil {
		engine.GET("/metrics", gin.WrapH(promhttp.HandlerFor(d.Metrics, promhttp.HandlerOpts{})))
	}
	for prefix, page := range d.Pages {
		engine.Any(prefix+"/:page", limitBody(maxBody), sameOrigin(), gin.WrapH(page)) //nolint:contextcheck // a refusal has the request's own context
	}
	if d.Netboot != nil {
		engine.Any(NetbootPrefix+"/*path", gin.WrapH(d.Netboot))
	}
	engine.NoMethod(func(c *gin.Context) {
		refuse(c, &protocolError{status: http.StatusMethodNotAllowed, code: "method-not-allowed", detail: "the path exists, but not with this method"})
	})
	engine.NoRoute(pages(d.Portal)) //nolint:contextcheck // as above
	return engine, nil
}

// routes mounts the contract's operations behind the middleware that each of them passes, in this order.
func (d Deps) routes(engine *gin.Engine, all operations) {
	limits := limiters{
		credential:   ratelimit.New(d.RateLimits, d.Clock, d.Limits.Credential),
		organization: ratelimit.New(d.RateLimits, d.Clock, d.Limits.Organization),
		address:      ratelimit.New(d.RateLimits, d.Clock, d.Limits.Address),
	}
	group := engine.Group("/",
		find(all),
		limitOwnBody(),
		limitTime(),
		authenticate(d.Authenticator),
		authorize(),
		limits.limitRate,
		sameOrigin(),
		readBody(),
		validate(),
		once{keeper: idempotency.New(d.Idempotency, d.Clock), tx: d.Tx}.handle,
	)
	strict := api.NewStrictHandlerWithOptions(server{Areas: d.Areas}, []api.StrictMiddlewareFunc{detach}, api.StrictGinServerOptions{
		RequestErrorHandlerFunc: func(c *gin.Context, err error) {
			_ = c.Error(err) // may name values, so that only the log gets it
			refuse(c, &protocolError{status: http.StatusBadRequest, code: "malformed-request", detail: "the request cannot be read"})
		},
		HandlerErrorFunc:         refuse,
		ResponseErrorHandlerFunc: func(c *gin.Context, err error) { refuse(c, fmt.Errorf("write answer: %w", err)) },
	})
	api.RegisterHandlersWithOptions(group, strict, api.GinServerOptions{ErrorHandler: func(c *gin.Context, err error, _ int) {
		_ = c.Error(err)
		refuse(c, &protocolError{status: http.StatusBadRequest, code: "malformed-request", detail: "the request cannot be read"})
	}})
	d.Agent.mount(engine.Group("/agent/v1", limitBody(maxAgentBody)))
}

// detach gives the handler a copy of Gin's context: the original is reused for another request, while what the handler starts (a
// transaction's watcher, a stream) may look at its context a moment longer.
func detach(next api.StrictHandlerFunc, _ string) api.StrictHandlerFunc {
	return func(c *gin.Context, request any) (any, error) {
		return next(c.Copy(), request)
	}
}
