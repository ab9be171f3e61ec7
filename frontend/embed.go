// Package frontend carries the built portal, so that the backend is one file. Without a build there is only .gitkeep in dist, and
// the backend serves the API alone.
package frontend

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Files returns the built portal, with index.html at its top; nil when it was not built.
func Files() fs.FS {
	built, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil // cannot be: the name is a good one
	}
	if _, err := fs.Stat(built, "index.html"); err != nil {
		return nil
	}
	return built
}
