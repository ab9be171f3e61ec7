package client

import (
	"net/http"
	"net/url"
	"regexp"
)

// NextCursor reads the cursor of the next page from an answer's Link header, `<…?cursor=X>; rel="next"`.
func NextCursor(response *http.Response) string {
	for _, header := range response.Header.Values("Link") {
		m := regexp.MustCompile(`<([^>]+)>;\s*rel="?next"?`).FindStringSubmatch(header)
		if m == nil {
			continue
		}
		if target, err := url.Parse(m[1]); err == nil {
			return target.Query().Get("cursor")
		}
	}
	return ""
}
