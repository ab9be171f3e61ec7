package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/client"
)

func TestAListFitsTheTerminalAndWideCutsNothing(t *testing.T) {
	t.Parallel()
	why := strings.Repeat("very long reason ", 30) + "END"
	nodes := []client.Node{{Name: "gpu-1", State: "quarantined", StateReason: why}, {Name: "gpu-2", State: "available"}}
	printed := func(f form, columns int) string {
		out := &bytes.Buffer{}
		p := newPrinter(out, io.Discard, f)
		if p.columns > 0 {
			p.columns = columns
		}
		require.NoError(t, p.list(nodes, func(w io.Writer) { describeNodes(w, nodes) }))
		return out.String()
	}
	narrow := printed(formTable, 60)
	require.NotContains(t, narrow, "END")
	require.Contains(t, narrow, "quarantined")
	for line := range strings.Lines(narrow) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 60, line)
	}
	require.Equal(t, 1, strings.Count(narrow, "…"), "only what was cut says so")
	require.Contains(t, printed(formWide, 60), "END")
	require.Contains(t, printed(formJSON, 60), "END")
}

func TestANameDoesNotReachTheTerminalItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	row(&out, "a", "\x1b[31mred\n\r\a\t\u202etxt.exe\u2069 Ω 北京 \U0001F600")
	require.Equal(t, "a\t\uFFFD[31mred\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDtxt.exe\uFFFD Ω 北京 \U0001F600\n", out.String())
}

func TestASecretIsNeverCut(t *testing.T) {
	t.Parallel()
	out := &bytes.Buffer{}
	p := printer{out: out, columns: 20}
	require.NoError(t, p.show(nil, func(w io.Writer) { row(w, "Secret", strings.Repeat("x", 90)) }))
	require.Contains(t, out.String(), strings.Repeat("x", 90))
}

func TestListsAreNeverNull(t *testing.T) {
	t.Parallel()
	type inner struct {
		List []string          `json:"list"`
		Raw  json.RawMessage   `json:"raw,omitempty"`
		Map  map[string][]int  `json:"map"`
		Next *inner            `json:"next,omitempty"`
		Any  any               `json:"any,omitempty"`
		At   time.Time         `json:"at"`
		Text map[string]string `json:"text,omitempty"`
	}
	value := map[string]any{
		"a": []inner(nil), "b": inner{Map: map[string][]int{"x": nil}}, "c": []inner{{Next: &inner{Any: inner{Map: map[string][]int{}}, Map: map[string][]int{}}, Map: map[string][]int{}}},
	}
	raw, err := json.Marshal(withEmptyLists(value))
	require.NoError(t, err)
	require.NotContains(t, string(raw), "null")
	require.Contains(t, string(raw), `"a":[]`)
	require.Contains(t, string(raw), `"x":[]`)
}

func TestDurationsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90m": 90 * time.Minute, "48h": 48 * time.Hour, "30d": 30 * day, "2w": 14 * day, "1w2d3h": 9*day + 3*time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute,
	} {
		var s span
		require.NoError(t, s.Set(text), text)
		require.Equal(t, want, time.Duration(s), text)
	}
	for _, text := range []string{"", "0s", "-5h", "2y", "d", "12", "1d-30h", "1h1d"} {
		var s span
		require.ErrorContains(t, s.Set(text), "want a duration", text)
	}
	rapid.Check(t, func(r *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, int64(400*day/time.Second)).Draw(r, "seconds")) * time.Second
		var s span
		require.NoError(r, s.Set(short(d)), short(d))
		require.Equal(r, d, time.Duration(s))
	})
}

func TestQuantitiesAreShownInSeconds(t *testing.T) {
	t.Parallel()
	require.Equal(t, "229.392", seconds("229392"))
	require.Equal(t, "12345678901234567890.000", seconds("12345678901234567890000"))
}
