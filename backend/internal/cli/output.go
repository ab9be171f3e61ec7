package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/money"
)

// form is how results are printed.
type form string

const (
	formTable form = "table" // for people; long lists fit the terminal
	formWide  form = "wide"  // the same with nothing cut off
	formJSON  form = "json"  // for scripts
)

var _ pflag.Value = (*form)(nil)

// Set implements pflag.Value.
func (f *form) Set(text string) error {
	switch form(text) {
	case formTable, formWide, formJSON:
		*f = form(text)
		return nil
	default:
		return fmt.Errorf("want table, wide or json")
	}
}

// String implements pflag.Value.
func (f *form) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *form) Type() string { return "form" }

// printer writes results in the form that was asked for. With JSON nothing else ever goes to out: words for people go to err.
type printer struct {
	out, err io.Writer
	json     bool
	columns  int // that a line of a list may take; 0: any number
}

func newPrinter(out, err io.Writer, f form) printer {
	p := printer{out: out, err: err, json: f == formJSON}
	if f == formTable {
		p.columns = columnsOf(out)
	}
	return p
}

// columnsOf is the terminal's width, else $COLUMNS, else a width that most people have.
func columnsOf(out io.Writer) int {
	const most = 160
	if file, ok := out.(*os.File); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return most
}

// show prints value as JSON, or lets table write it for people.
func (p printer) show(value any, table func(w io.Writer)) error {
	if p.json {
		return p.showJSON(value)
	}
	return p.table(p.out, table)
}

// list is show for many things, one a line, whose last column may be long: lines that do not fit are cut off.
func (p printer) list(value any, table func(w io.Writer)) error {
	if p.json || p.columns == 0 {
		return p.show(value, table)
	}
	var whole bytes.Buffer
	if err := p.table(&whole, table); err != nil {
		return err
	}
	for line := range strings.Lines(whole.String()) {
		if _, err := fmt.Fprintln(p.out, cut(strings.TrimRight(line, " \n"), p.columns)); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	}
	return nil
}

// done says that something happened that has no result of its own; scripts get it as {"what": id}.
func (p printer) done(what, id, words string) error {
	return p.show(map[string]string{what: id}, func(w io.Writer) { row(w, words) })
}

// note tells people something beside the result.
func (p printer) note(words string) { fmt.Fprintln(p.err, words) }

func (p printer) showJSON(value any) error {
	encoder := json.NewEncoder(p.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(withEmptyLists(value)); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

func (p printer) table(out io.Writer, table func(w io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	table(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// cut shortens a line to so many characters, and shows that it did.
func cut(line string, columns int) string {
	runes := []rune(line)
	if len(runes) <= columns {
		return line
	}
	return string(runes[:max(columns-1, 0)]) + "…"
}

func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = plain(fmt.Sprint(cell))
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// plain shows what would move the cursor, colour the screen or turn the writing round as a mark: names come from other people.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func amount(m client.Money) string { return money.Of(m.Amount, money.Currency(m.Currency)).String() }

func rate(r client.Rate) string {
	return money.Rate{Micros: r.Micros, Currency: money.Currency(r.Currency)}.String() + "/" + string(r.Per) + "-h"
}

func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func window(w client.Window) string {
	return instant(w.Start) + " – " + instant(w.End) + " (" + short(w.End.Sub(w.Start).Round(time.Second)) + ")"
}

func or(s *string, other string) string {
	if s == nil || *s == "" {
		return other
	}
	return *s
}

// bar draws a progress bar of 24 cells.
func bar(percent int) string {
	const cells = 24
	filled := min(max(percent, 0), 100) * cells / 100
	return "[" + strings.Repeat("█", filled) + strings.Repeat("·", cells-filled) + "]"
}
