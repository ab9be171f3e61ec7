package stripe

import (
	"html/template"
	"net/http"
	"strings"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
)

// Page is the test gateway's stand-in for a bank's 3-D Secure page: it is served under the path of pageURL, shows the payment named
// by the last element of the path, and lets its reader complete or fail it.
func (g *TestGateway) Page() http.Handler {
	page := template.Must(template.New("page").Parse(pageHTML))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ref := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		var intent billing.Intent
		var err error
		switch r.Method {
		case http.MethodGet:
			intent, err = g.Intent(r.Context(), ref)
		case http.MethodPost:
			intent, err = g.Authenticate(r.Context(), ref, r.PostFormValue("outcome") == "complete")
		default:
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		switch {
		case fault.Is(err, fault.NotFound):
			http.NotFound(w, r)
		case fault.Is(err, fault.Conflict):
			http.Error(w, "This payment does not wait for you.", http.StatusConflict)
		case err != nil:
			http.Error(w, "The test gateway has a problem.", http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
			_ = page.Execute(w, intent) // the client may be gone
		}
	})
}

const pageHTML = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Test gateway</title><meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:4rem auto;padding:0 1rem}button{font:inherit;padding:.5rem 1rem;margin-right:1rem}</style></head>
<body><h1>Test gateway</h1><p>No real money moves here. This page stands in for your bank.</p>
<p>Payment <code>{{.Ref}}</code> of <strong>{{.Amount}}</strong>: <strong>{{.State}}</strong>{{with .Failure}} ({{.}}){{end}}.</p>
{{if eq .State "requires_action"}}<form method="post"><button name="outcome" value="complete">Complete authentication</button>
<button name="outcome" value="fail">Fail authentication</button></form>{{else}}<p>You may close this page.</p>{{end}}
</body></html>
`
