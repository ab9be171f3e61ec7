package netdiscover

import (
	"fmt"
	"strings"
)

// Defect is something wrong with one line of a file.
type Defect struct {
	Line   int // from 1; 0: the file as a whole
	Reason string
}

// String renders the defect for people.
func (d Defect) String() string {
	if d.Line == 0 {
		return d.Reason
	}
	return fmt.Sprintf("line %d: %s", d.Line, d.Reason)
}

// maxDefects bounds what is said about a file: one that is something else altogether is wrong in every line.
const maxDefects = 20

// Defects is the error of a file that cannot be used. It has the first defects, in the order of their lines.
type Defects []Defect

// Error implements error.
func (d Defects) Error() string {
	lines := make([]string, len(d))
	for i, one := range d {
		lines[i] = one.String()
	}
	return strings.Join(lines, "; ")
}

// quote shows a piece of the file, cut to a length that fits into a sentence.
func quote(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
