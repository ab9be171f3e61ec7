// Package frontend carries the built portal, so that the backend is one file. Without a build there is only .gitkeep in dist, and
// the backend serves the API alone.
package frontend

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Dist returns the built portal, with index.html at its top; nil when it was not built.
func Dist() (fs.FS, error) {
	built, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, fmt.Errorf("open portal: %w", err)
	}
	if _, err := fs.Stat(built, "index.html"); err != nil {
		return nil, nil //nolint:nilerr,nilnil // not built: there is no portal to serve
	}
	return built, nil
}
