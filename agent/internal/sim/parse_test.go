package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinesAreReadAsAShellWould(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]command{
		"":                      nil,
		"  ":                    nil,
		";":                     nil,
		"ls":                    {{words: []string{"ls"}}},
		"a; b ;c":               {{words: []string{"a"}}, {words: []string{"b"}}, {words: []string{"c"}}},
		"a&&b":                  {{words: []string{"a"}}, {words: []string{"b"}, onlyIfOK: true}},
		`echo "a b" 'c;d' e\ f`: {{words: []string{"echo", "a b", "c;d", "e f"}}},
		`echo ""`:               {{words: []string{"echo", ""}}},
		"echo x>f":              {{words: []string{"echo", "x"}, to: "f"}},
		"echo x >> f y":         {{words: []string{"echo", "x", "y"}, to: "f", appends: true}},
	} {
		got, err := parseLine(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
	for _, bad := range []string{"&& a", "a &&", "a | b", "a & b", "a > ", "> f", "a <b", `"open`, `a \`, "a > ; b", "a && ; b"} {
		_, err := parseLine(bad)
		require.ErrorIs(t, err, errSyntax, bad)
	}
}

func FuzzNoLineMakesTheParserPanic(f *testing.F) {
	f.Add(`echo "x" > f && cat f; ls`)
	f.Fuzz(func(t *testing.T, line string) {
		commands, err := parseLine(line)
		if err != nil {
			return
		}
		for _, c := range commands {
			require.NotEmpty(t, c.words)
		}
	})
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "../x", "/etc/passwd", "a/b", `a\b`, "a\x00b"} {
		require.Error(t, fileName(name), name)
	}
	require.NoError(t, fileName("model-00001.safetensors"))
}
