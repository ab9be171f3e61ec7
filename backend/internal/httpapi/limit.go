package httpapi

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Limits are how often somebody may call; zero Requests mean no limit.
type Limits struct {
	Credential   ratelimit.Policy // a session's person, or an API key
	Organization ratelimit.Policy // all of its credentials together
	Address      ratelimit.Policy // an IP address on the routes without a credential that change something: log-in, refresh
}

type limiters struct{ credential, organization, address *ratelimit.Limiter }

// limitRate takes the request from every bucket that it belongs to, and tells about the tightest.
func (l limiters) limitRate(c *gin.Context) {
	ctx := c.Request.Context()
	actor, known := tenant.ActorFrom(ctx)
	switch {
	case known:
		if l.take(c, l.credential, actor.Name()) {
			l.take(c, l.organization, actor.Org.String())
		}
	case mutates(c.Request.Method) && operationOf(c).id != "receiveStripeWebhook":
		l.take(c, l.address, requestFrom(ctx).ip)
	}
	if !c.IsAborted() {
		c.Next()
	}
}

// take reports whether the request may go on; if not it is answered. A limiter that cannot be asked does not stop anybody: the database
// that it needs will.
func (l limiters) take(c *gin.Context, limiter *ratelimit.Limiter, key string) bool {
	policy := limiter.Policy()
	if policy.Requests == 0 {
		return true
	}
	verdict, err := limiter.Allow(c.Request.Context(), key)
	if err != nil {
		_ = c.Error(fmt.Errorf("limit rate: %w", err))
		return true
	}
	c.Writer.Header().Add("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", policy.Name, policy.Requests, int(policy.Window/time.Second)))
	c.Writer.Header().Add("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", policy.Name, verdict.Remaining, seconds(verdict.Reset)))
	if verdict.Allowed {
		return true
	}
	c.Header("Retry-After", strconv.Itoa(seconds(verdict.RetryAfter)))
	refuse(c, fault.New(fault.Exhausted, "rate-limited", "too many requests, try again in %d s", seconds(verdict.RetryAfter)).With("policy", policy.Name))
	return false
}

// seconds rounds up: a client that comes back then is let in.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
