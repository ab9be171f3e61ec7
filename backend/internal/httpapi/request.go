package httpapi

import (
	"context"
	"net/url"
	"strings"
)

// requestInfo is what handlers may know of the HTTP request beyond its typed form.
type requestInfo struct {
	id        string
	path      string
	query     url.Values
	accept    string
	ip        string
	userAgent string
	cookie    string // the refresh cookie
	oidc      string // the cookie of a log-in at an identity provider
}

type requestKey struct{}

// requestFrom returns the request that ctx belongs to; the zero value outside one.
func requestFrom(ctx context.Context) requestInfo {
	info, _ := ctx.Value(requestKey{}).(requestInfo)
	return info
}

// RequestID returns the id of the request that ctx belongs to, for logs and the audit; "" outside one.
func RequestID(ctx context.Context) string { return requestFrom(ctx).id }

// wantsEventStream reports whether the client asked for server-sent events.
func wantsEventStream(ctx context.Context) bool {
	for part := range strings.SplitSeq(requestFrom(ctx).accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(media), "text/event-stream") {
			return true
		}
	}
	return false
}

// target is path and query in one canonical order.
func (r requestInfo) target() string {
	if len(r.query) == 0 {
		return r.path
	}
	return r.path + "?" + r.query.Encode()
}
