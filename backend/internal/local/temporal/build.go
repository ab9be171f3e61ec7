package temporal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/leasehold/leasehold/backend/internal/local"
)

// reportPeriod is the time between two lines of progress.
const reportPeriod = 5 * time.Second

// Build returns the temporald program, and builds it if this source tree's is not in the cache yet: about five minutes on two
// cores the first time, seconds with a warm build cache. LEASEHOLD_TEMPORALD names a program to use instead.
func Build(ctx context.Context, progress func(string)) (string, error) {
	if path := os.Getenv("LEASEHOLD_TEMPORALD"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find temporald: %w", err)
		}
		return path, nil
	}
	source, err := findSource()
	if err != nil {
		return "", err
	}
	cache, err := local.CacheDir()
	if err != nil {
		return "", err
	}
	name, err := fingerprint(source)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, name)
	if isProgram(path) {
		return path, nil
	}
	unlock, err := local.Lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isProgram(path) { // another process was faster.
		return path, nil
	}
	if progress == nil {
		progress = func(string) {}
	}
	if err := build(ctx, source, path, progress); err != nil {
		return "", err
	}
	return path, nil
}

// findSource looks for tools/temporald upwards from the working directory, then from the running program.
func findSource() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			source := filepath.Join(dir, "tools", "temporald")
			if _, err := os.Stat(filepath.Join(source, "go.mod")); err == nil {
				return source, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no Temporal server: run inside Leasehold's source tree, or set TEMPORAL_ADDRESS to a server's host:port, " +
		"or put the temporal program on PATH")
}

// fingerprint names the program after its source, so that a change of version makes a new program.
func fingerprint(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*"))
	if err != nil {
		return "", fmt.Errorf("read temporald's source: %w", err)
	}
	hash := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file) //nolint:gosec // our own source.
		if err != nil {
			return "", fmt.Errorf("read temporald's source: %w", err)
		}
		fmt.Fprintf(hash, "%s %d\n", filepath.Base(file), len(content))
		hash.Write(content)
	}
	return "temporald-" + hex.EncodeToString(hash.Sum(nil)[:6]), nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// build compiles beside path and moves the result into place when it is whole.
func build(ctx context.Context, source, path string, progress func(string)) error {
	progress("building the Temporal server (once; about five minutes with a cold build cache)")
	total := countPackages(ctx, source)
	work := path + ".new"
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-buildvcs=false", "-ldflags=-s -w", "-o", work, ".") //nolint:gosec // our own source.
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=off")
	printed, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build temporald: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build temporald: %w (Go 1.26 or newer must be on PATH)", err)
	}
	var tail []string
	built, last := 0, time.Now() //nolint:forbidigo // paces messages to a person.
	for lines := bufio.NewScanner(printed); lines.Scan(); {
		built++
		tail = append(tail, lines.Text())
		tail = tail[max(0, len(tail)-10):]
		if now := time.Now(); now.Sub(last) >= reportPeriod { //nolint:forbidigo // as above.
			last = now
			progress(fmt.Sprintf("building the Temporal server: %d of at most %d packages", built, total))
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("build temporald: %w: %s", err, tail)
	}
	if err := os.Rename(work, path); err != nil {
		return fmt.Errorf("build temporald: %w", err)
	}
	return nil
}

// countPackages is how many packages the program consists of, which is how many are compiled if none is cached yet.
func countPackages(ctx context.Context, source string) int {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", ".")
	cmd.Dir = source
	out, err := cmd.Output()
	if err != nil {
		return 0 // only a message needs it.
	}
	return bytes.Count(out, []byte("\n"))
}
