// Package pdf draws invoices. It is the only package that knows fpdf. The same statement is always the same bytes.
package pdf

import (
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"

	"codeberg.org/go-pdf/fpdf"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Lengths are in millimetres, sizes of type in points.
const (
	margin     = 18.0
	width      = 210 - 2*margin
	lineHeight = 4.6
	small      = 8.0
	normal     = 9.0
	large      = 20.0
	family     = "go"
	instantFmt = "2006-01-02 15:04:05"
)

// sheet is a document with our type and colours.
type sheet struct{ *fpdf.Fpdf }

// Invoice writes the statement as a PDF (A4). notice stands on every page, e.g. that no real money moved; it may be empty. A draft says that
// it is one. Letters that the typeface lacks (it has Latin, Greek and Cyrillic) appear as boxes.
func Invoice(w io.Writer, s billing.Statement, notice string) error {
	page := sheet{fpdf.New("P", "mm", "A4", "")}
	page.AddUTF8FontFromBytes(family, "", goregular.TTF)
	page.AddUTF8FontFromBytes(family, "B", gobold.TTF)
	page.identify(s)
	page.SetMargins(margin, margin, margin)
	page.SetAutoPageBreak(true, margin+8)
	page.AliasNbPages("{pages}")
	page.SetFooterFunc(func() { page.foot(s, notice) })
	page.AddPage()
	page.head(s)
	for _, of := range leasesOf(s) {
		page.lease(s, of)
	}
	page.totals(s)
	if err := page.Output(w); err != nil {
		return fmt.Errorf("draw invoice: %w", err)
	}
	return nil
}

// identify sets what viewers show about the document, and keeps the clock and the order of maps out of its bytes.
func (p sheet) identify(s billing.Statement) {
	p.SetTitle(billing.IssuerName+" "+heading(s), true)
	p.SetAuthor(billing.IssuerName, true)
	p.SetProducer(billing.IssuerName, true)
	p.SetLang("en")
	p.SetCatalogSort(true)
	at := s.CreatedAt
	if !s.FinalizedAt.IsZero() {
		at = s.FinalizedAt
	}
	p.SetCreationDate(at.UTC())
	p.SetModificationDate(at.UTC())
}

func heading(s billing.Statement) string {
	switch s.State {
	case billing.Final:
		return "Invoice " + s.Number
	case billing.Void:
		return "Void invoice"
	case billing.Draft:
	}
	return "Draft invoice"
}

func (p sheet) head(s billing.Statement) {
	p.font("B", large)
	p.CellFormat(width/2, 10, billing.IssuerName, "", 0, "L", false, 0, "")
	p.CellFormat(width/2, 10, heading(s), "", 1, "R", false, 0, "")
	p.Ln(4)
	p.pair("Invoice to", drawable(s.Customer.Name)+", "+s.Customer.Country)
	p.pair("Customer", s.Customer.ID.String())
	p.pair("Reference", s.ID.String())
	if s.FinalizedAt.IsZero() {
		p.pair("Drafted", s.CreatedAt.UTC().Format(instantFmt)+" UTC. Amounts may change until it is final.")
	} else {
		p.pair("Issued", s.FinalizedAt.UTC().Format(instantFmt)+" UTC")
	}
	p.pair("Period", period(s.From, s.To)+" UTC")
	p.Ln(4)
}

func (p sheet) pair(name, value string) {
	p.grey()
	p.font("", normal)
	p.CellFormat(28, lineHeight, name, "", 0, "L", false, 0, "")
	p.black()
	p.MultiCell(width-28, lineHeight, value, "", "L", false)
}

// column of the table of lines; together they fill the width.
type column struct {
	name  string
	width float64
	align string
}

func columns() []column {
	return []column{
		{"Description", 52, "L"}, {"Period (UTC)", 50, "L"}, {"Quantity", 26, "R"}, {"Rate", 22, "R"}, {"Amount", width - 150, "R"},
	}
}

// lease is one lease's heading and its lines.
func (p sheet) lease(s billing.Statement, of ids.Lease) {
	title := s.Titles[of]
	p.room(4 * lineHeight)
	p.font("B", normal)
	p.MultiCell(width, lineHeight+1, drawable(title.Name), "", "L", false)
	p.grey()
	p.font("", small)
	p.MultiCell(width, lineHeight, fmt.Sprintf("%d × %s, %s, project %s, %s",
		title.Instances, drawable(title.TypeName), drawable(title.SiteName), drawable(title.ProjectName), of), "", "L", false)
	p.rule()
	for _, column := range columns() {
		p.CellFormat(column.width, lineHeight, column.name, "", 0, column.align, false, 0, "")
	}
	p.Ln(lineHeight)
	p.black()
	for _, line := range s.Lines {
		if line.Lease == of {
			p.row(drawable(line.Description), period(line.From, line.To), quantity(line), rate(line), line.Amount.String())
		}
	}
	p.Ln(3)
}

// row is one row of the table, as high as its highest cell.
func (p sheet) row(cells ...string) {
	p.font("", small)
	split := make([][]string, len(cells))
	rows := 1
	for i, cell := range cells {
		split[i] = p.SplitText(cell, columns()[i].width-2)
		rows = max(rows, len(split[i]))
	}
	p.room(float64(rows) * lineHeight)
	for n := range rows {
		for i, column := range columns() {
			text := ""
			if n < len(split[i]) {
				text = split[i][n]
			}
			p.CellFormat(column.width, lineHeight, text, "", 0, column.align, false, 0, "")
		}
		p.Ln(lineHeight)
	}
	p.rule()
}

func (p sheet) totals(s billing.Statement) {
	p.room(8 * lineHeight)
	p.Ln(2)
	p.sum("", "Subtotal", s.Subtotal)
	for _, t := range taxesOf(s) {
		p.sum("", "Tax "+percent(t.bps)+" on "+t.net.String(), t.tax)
	}
	p.sum("B", "Total", s.Total)
	p.sum("", "Paid in advance from the balance", s.Prepaid.Neg())
	p.sum("B", "Payable", s.Payable)
}

func (p sheet) sum(style, name string, amount money.Amount) {
	p.font(style, normal)
	p.CellFormat(width-40, lineHeight+0.6, name, "", 0, "R", false, 0, "")
	p.CellFormat(40, lineHeight+0.6, amount.String(), "", 1, "R", false, 0, "")
}

func (p sheet) foot(s billing.Statement, notice string) {
	p.SetY(-margin - 4)
	p.grey()
	p.font("", small-1.5)
	text := "Every amount follows from the leases' recorded events and can be recomputed."
	if s.Digest != "" {
		text += " Digest " + s.Digest
	}
	p.MultiCell(width, 3.2, strings.TrimSpace(notice+"\n"+text), "", "L", false)
	p.SetY(-margin + 4)
	p.CellFormat(width, 4, fmt.Sprintf("%s · page %d of {pages}", heading(s), p.PageNo()), "", 0, "R", false, 0, "")
	p.black()
}

// room begins a new page when the height does not fit on this one.
func (p sheet) room(height float64) {
	_, pageHeight := p.GetPageSize()
	_, _, _, bottom := p.GetMargins()
	if p.GetY()+height > pageHeight-max(bottom, margin+8) {
		p.AddPage()
	}
}

func (p sheet) rule() {
	p.SetDrawColor(215, 215, 220)
	p.Line(margin, p.GetY(), margin+width, p.GetY())
}

// drawable leaves of a text what a PDF's font tables can name: the basic plane, without control characters.
func drawable(text string) string {
	return strings.Map(func(r rune) rune {
		if r > 0xFFFF || r < ' ' {
			return '\uFFFD'
		}
		return r
	}, text)
}

func (p sheet) font(style string, size float64) { p.SetFont(family, style, size) }

func (p sheet) grey() { p.SetTextColor(95, 99, 110) }

func (p sheet) black() { p.SetTextColor(20, 22, 28) }

func period(from, to time.Time) string {
	from, to = from.UTC(), to.UTC()
	if from.Format(time.DateOnly) == to.Format(time.DateOnly) {
		return from.Format(instantFmt) + " – " + to.Format(time.TimeOnly)
	}
	return from.Format(instantFmt) + " – " + to.Format(instantFmt)
}

// quantity is in unit-hours, rounded for the eye; the exact number is in the evidence.
func quantity(line billing.ChargeLine) string {
	hours := new(big.Rat).SetFrac(line.Quantity, big.NewInt(time.Hour.Milliseconds()))
	unit := "instance-h"
	if strings.HasPrefix(line.Unit, "gpu") {
		unit = "GPU-h"
	}
	return hours.FloatString(4) + " " + unit
}

func rate(line billing.ChargeLine) string { return line.Rate.String() }

func percent(bps int) string {
	return new(big.Rat).SetFrac64(int64(bps), 100).FloatString(2) + " %"
}

// leasesOf are the leases on the lines, in their order.
func leasesOf(s billing.Statement) []ids.Lease {
	var found []ids.Lease
	for _, line := range s.Lines {
		if !slices.Contains(found, line.Lease) {
			found = append(found, line.Lease)
		}
	}
	return found
}

// taxed is what was taxed at one rate.
type taxed struct {
	bps      int
	net, tax money.Amount
}

// taxesOf sums the lines by tax rate, lowest first.
func taxesOf(s billing.Statement) []taxed {
	var found []taxed
	for _, line := range s.Lines {
		i := slices.IndexFunc(found, func(t taxed) bool { return t.bps == line.TaxRateBPS })
		if i < 0 {
			i, found = len(found), append(found, taxed{bps: line.TaxRateBPS, net: money.Of(0, line.Amount.Currency), tax: money.Of(0, line.Tax.Currency)})
		}
		found[i].net, found[i].tax = found[i].net.Add(line.Amount), found[i].tax.Add(line.Tax)
	}
	slices.SortFunc(found, func(a, b taxed) int { return a.bps - b.bps })
	return found
}
