package httpapi

import (
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/backend/fault"
)

// portalPolicy lets a page load from its own origin only, and neither scripts nor styles in line: the portal sets styles of single
// elements through the DOM, which the policy allows, and the browser's test fails on any that is not.
const portalPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

const indexPage = "index.html"

// pages serves the portal: its files, and its index for every other path that a browser may open, since the router lives in the page.
// Paths of the API that do not exist stay problems.
func pages(portal fs.FS) gin.HandlerFunc {
	return func(c *gin.Context) {
		name := strings.TrimPrefix(path.Clean("/"+c.Request.URL.Path), "/")
		if portal == nil || isAPIPath(name) || mutates(c.Request.Method) {
			refuse(c, errNoPage())
			return
		}
		body, err := fs.ReadFile(portal, name)
		if name == "" || err != nil {
			if path.Ext(name) != "" && !wantsPage(c) { // a missing file, not a page
				refuse(c, errNoPage())
				return
			}
			name = indexPage
			body, err = fs.ReadFile(portal, indexPage)
		}
		if err != nil {
			refuse(c, errNoPage())
			return
		}
		servePage(c, name, body)
	}
}

func errNoPage() error { return fault.New(fault.NotFound, "not-found", "there is no such path") }

func isAPIPath(name string) bool {
	for _, prefix := range []string{"v1", "agent", ".well-known"} {
		if name == prefix || strings.HasPrefix(name, prefix+"/") {
			return true
		}
	}
	return false
}

func wantsPage(c *gin.Context) bool { return strings.Contains(c.GetHeader("Accept"), "text/html") }

func servePage(c *gin.Context, name string, body []byte) {
	c.Header("Content-Security-Policy", portalPolicy)
	c.Header("Cache-Control", "no-cache")
	if strings.HasPrefix(name, "assets/") { // the build puts a hash of the content into these names
		c.Header("Cache-Control", "public, max-age=31536000, immutable")
	}
	media := mime.TypeByExtension(path.Ext(name))
	if media == "" {
		media = http.DetectContentType(body)
	}
	c.Data(http.StatusOK, media, body)
}
