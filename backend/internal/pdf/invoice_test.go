package pdf_test

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/pdf"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// show keeps the drawn invoice for the eye: go test ./backend/internal/pdf -show FILE.
var show = flag.String("show", "", "write the invoice to this file")

func statement(lines int) billing.Statement {
	start := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	of := ids.Make[ids.Lease]()
	s := billing.Statement{
		Invoice: billing.Invoice{
			ID: ids.Make[ids.Invoice](), Org: ids.Make[ids.Org](), Number: "LH-000042", State: billing.Final, From: start, To: start.Add(time.Duration(lines) * time.Hour),
			Subtotal: money.Of(0, money.EUR), Tax: money.Of(0, money.EUR), CreatedAt: start, FinalizedAt: start.Add(48 * time.Hour),
			Digest: "sha256:0f343b0931126a20f133d67c2b018a3b5f1d9c2a6e4b8d7c5a3f1e0d9c8b7a65",
		},
		Titles: map[ids.Lease]billing.Title{of: {
			Lease: of, Name: "Zeitraum-Übung für Ωmega, с длинным именем, which is as long as a name may be and therefore breaks over lines",
			TypeName: "h100-sxm.8x.ndr", Instances: 64, SiteName: "fra1", ProjectName: "vision",
		}},
	}
	s.Customer = billing.Party{ID: s.Org, Name: "Müller & Söhne Forschungsgesellschaft", Country: "DE"}
	for i := range lines {
		from := start.Add(time.Duration(i) * time.Hour)
		line := metering.Line{
			Segment: 1, Kind: metering.Usage, Seq: i + 1, Description: "64 × h100-sxm.8x.ndr at 2.4999 EUR per gpu-hour", From: from, To: from.Add(time.Hour),
			Unit: "gpu_milliseconds", Quantity: money.UnitMillis(512, time.Hour), Rate: money.Rate{Micros: 2_499_900, Currency: money.EUR},
			Amount: money.Of(127_995, money.EUR), TaxRateBPS: 1_900, Tax: money.Of(24_319, money.EUR),
		}
		s.Lines = append(s.Lines, billing.ChargeLine{Line: line, Lease: of})
		s.Subtotal, s.Tax = s.Subtotal.Add(line.Amount), s.Tax.Add(line.Tax)
	}
	s.Total = s.Subtotal.Add(s.Tax)
	s.Prepaid, s.Payable = s.Total, money.Of(0, money.EUR)
	return s
}

func draw(t *testing.T, s billing.Statement, notice string) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, pdf.Invoice(&out, s, notice))
	return out.Bytes()
}

func TestTheSameStatementIsTheSameBytes(t *testing.T) {
	t.Parallel()
	s := statement(90)
	first := draw(t, s, "Test gateway: no real money moved.")
	require.Equal(t, first, draw(t, s, "Test gateway: no real money moved."))
	require.True(t, bytes.HasPrefix(first, []byte("%PDF-")))
	require.Greater(t, bytes.Count(first, []byte("/Type /Page\n")), 1, "ninety lines do not fit on one page")
	if *show != "" {
		require.NoError(t, os.WriteFile(*show, first, 0o600))
	}
}

func TestADraftAndABillWithoutLinesAreDrawn(t *testing.T) {
	t.Parallel()
	s := statement(0)
	s.State, s.Number, s.Digest, s.FinalizedAt = billing.Draft, "", "", time.Time{}
	require.NotEmpty(t, draw(t, s, ""))
	s.Customer.Name = "北京算力有限公司\x00\U0001F600" // letters that the typeface lacks must not break the document
	require.NotEmpty(t, draw(t, s, ""))
}
