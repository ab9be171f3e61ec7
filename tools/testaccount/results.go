package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
)

// event is one line of `go test -json`, in its spelling.
//
//nolint:tagliatelle // not our names.
type event struct {
	Action      string `json:"Action"` // run, output, pass, fail, skip, build-fail, …
	Package     string `json:"Package"`
	Test        string `json:"Test"`
	Output      string `json:"Output"`
	FailedBuild string `json:"FailedBuild"`
}

// said matches what a test logged, as `    file_test.go:12: why`.
var said = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)$`)

// readGo tallies tests and their subtests. A package that fails outside its tests, as when it does not compile, is one failure.
func readGo(results io.Reader) (tally, error) {
	var t tally
	reasons := map[string]string{} // by test: the last that it said
	failedIn := map[string]bool{}  // by package
	decoder := json.NewDecoder(results)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return tally{}, fmt.Errorf("decode event: %w", err)
		}
		name := path.Base(e.Package) + "." + e.Test
		switch {
		case e.Test == "" && e.Action == "fail":
			t.addPackage(e, failedIn[e.Package])
		case e.Test == "":
		case e.Action == "output":
			if match := said.FindStringSubmatch(strings.TrimRight(e.Output, "\n")); match != nil {
				reasons[name] = match[1]
			}
		case e.Action == "pass":
			t.passed++
		case e.Action == "skip":
			t.skips = append(t.skips, note{name, reasons[name]})
		case e.Action == "fail":
			failedIn[e.Package] = true
			t.failed++
			t.failures = append(t.failures, note{name, ""})
		}
	}
}

func (t *tally) addPackage(e event, explained bool) {
	if explained {
		return
	}
	why := "it failed outside its tests"
	if e.FailedBuild != "" {
		why = "it does not compile"
	}
	t.failed++
	t.failures = append(t.failures, note{e.Package, why})
}

// readVitest tallies vitest's JSON report.
//
//nolint:tagliatelle // not our names.
func readVitest(results io.Reader) (tally, error) {
	var report struct {
		TestResults []struct {
			Name             string `json:"name"`
			Status           string `json:"status"`
			Message          string `json:"message"`
			AssertionResults []struct {
				FullName string `json:"fullName"`
				Status   string `json:"status"`
			} `json:"assertionResults"`
		} `json:"testResults"`
	}
	if err := json.NewDecoder(results).Decode(&report); err != nil {
		return tally{}, fmt.Errorf("decode report: %w", err)
	}
	var t tally
	for _, file := range report.TestResults {
		if file.Status == "failed" && len(file.AssertionResults) == 0 {
			t.failed++
			t.failures = append(t.failures, note{path.Base(file.Name), file.Message})
		}
		for _, test := range file.AssertionResults {
			name := path.Base(file.Name) + ": " + test.FullName
			switch test.Status {
			case "passed":
				t.passed++
			case "failed":
				t.failed++
				t.failures = append(t.failures, note{name, ""})
			default:
				t.skips = append(t.skips, note{name, test.Status})
			}
		}
	}
	return t, nil
}
