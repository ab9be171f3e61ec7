package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/leasehold/leasehold/backend/client"
	"github.com/leasehold/leasehold/backend/money"
)

// printer writes results in the form that was asked for.
type printer struct {
	out  io.Writer
	json bool
}

// show prints value as JSON, or lets table write it for people.
func (p printer) show(value any, table func(w io.Writer)) error {
	if p.json {
		encoder := json.NewEncoder(p.out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		return nil
	}
	w := tabwriter.NewWriter(p.out, 0, 4, 2, ' ', 0)
	table(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = fmt.Sprint(cell)
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

func amount(m client.Money) string { return money.Of(m.Amount, money.Currency(m.Currency)).String() }

func rate(r client.Rate) string {
	return money.Rate{Micros: r.Micros, Currency: money.Currency(r.Currency)}.String() + "/" + string(r.Per) + "-h"
}

func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func window(w client.Window) string {
	return instant(w.Start) + " – " + instant(w.End) + " (" + w.End.Sub(w.Start).Round(time.Second).String() + ")"
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
