// Command testaccount closes a test run with a plain account: what ran, what failed, and every test that was skipped with its reason.
//
//	testaccount DIR
//
// It reads from DIR what the runners left there: NAME.jsonl (go test -json), NAME.vitest.json (vitest's JSON report), failed
// (one failed stage a line) and missing (one "what: why" a line). Its exit status is 0 only if tests ran and nothing failed.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A tally is what one runner's tests came to.
type tally struct {
	name            string
	passed, failed  int
	failures, skips []note
}

// A note names a test and says why.
type note struct{ test, why string }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: testaccount DIR")
		os.Exit(2)
	}
	ok, err := account(os.Args[1], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testaccount:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

// account writes the account and tells whether the run was good.
func account(dir string, out io.Writer) (bool, error) {
	tallies, err := readTallies(dir)
	if err != nil {
		return false, err
	}
	stages, missing := readLines(dir, "failed"), readLines(dir, "missing")
	var total tally
	fmt.Fprintln(out, "\nWhat ran")
	for _, t := range tallies {
		fmt.Fprintf(out, "  %-12s %5d passed, %d failed, %d skipped\n", t.name, t.passed, t.failed, len(t.skips))
		total.passed += t.passed
		total.failed += t.failed
		total.failures = append(total.failures, t.failures...)
		total.skips = append(total.skips, t.skips...)
	}
	writeNotes(out, "Failed", total.failures)
	writeNotes(out, "Skipped, and why", total.skips)
	writeLines(out, "Could not be had on this machine", missing)
	writeLines(out, "Stages that failed", stages)
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", total.passed, total.failed, len(total.skips))
	return total.passed > 0 && total.failed == 0 && len(stages) == 0, nil
}

func readTallies(dir string) ([]tally, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json*"))
	if err != nil {
		return nil, fmt.Errorf("list results: %w", err)
	}
	var tallies []tally
	for _, file := range files {
		read := readGo
		if strings.HasSuffix(file, ".vitest.json") {
			read = readVitest
		}
		t, err := readFile(file, read)
		if err != nil {
			return nil, err
		}
		t.name, _, _ = strings.Cut(filepath.Base(file), ".")
		tallies = append(tallies, t)
	}
	return tallies, nil
}

func readFile(path string, read func(io.Reader) (tally, error)) (tally, error) {
	file, err := os.Open(path) //nolint:gosec // given on the command line.
	if err != nil {
		return tally{}, fmt.Errorf("open results: %w", err)
	}
	defer func() { _ = file.Close() }()
	t, err := read(file)
	if err != nil {
		return tally{}, fmt.Errorf("read %s: %w", path, err)
	}
	return t, nil
}

func readLines(dir, name string) []string {
	raw, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // given on the command line.
	if err != nil {
		return nil // nobody had anything to say.
	}
	return strings.FieldsFunc(string(raw), func(r rune) bool { return r == '\n' })
}

func writeNotes(out io.Writer, title string, notes []note) {
	var lines []string
	for _, n := range notes {
		line := n.test
		if n.why != "" {
			line += ": " + n.why
		}
		lines = append(lines, line)
	}
	writeLines(out, title, lines)
}

func writeLines(out io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(out, "\n"+title)
	for _, line := range lines {
		fmt.Fprintln(out, "  "+line)
	}
}
