package focus_test

import (
	"bytes"
	"encoding/csv"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/billing/focus"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

var start = time.Date(2026, time.February, 28, 23, 0, 0, 0, time.UTC)

func statement(currency money.Currency, prepaid int64, lines ...metering.Line) billing.Statement {
	of := ids.Make[ids.Lease]()
	invoice := billing.Invoice{ID: ids.Make[ids.Invoice](), Org: ids.Make[ids.Org](), Number: "LH-000007", State: billing.Final, Lease: of}
	invoice.Subtotal, invoice.Tax = money.Of(0, currency), money.Of(0, currency)
	for _, line := range lines {
		invoice.Lines = append(invoice.Lines, billing.ChargeLine{Line: line, ID: ids.Make[ids.Charge](), Org: invoice.Org, Lease: of})
		invoice.Subtotal, invoice.Tax = invoice.Subtotal.Add(line.Amount), invoice.Tax.Add(line.Tax)
	}
	invoice.Total = invoice.Subtotal.Add(invoice.Tax)
	invoice.Prepaid = money.Of(prepaid, currency)
	invoice.Payable = invoice.Total.Sub(invoice.Prepaid)
	return billing.Statement{
		Invoice: invoice, Customer: billing.Party{ID: invoice.Org, Name: "=cmd|' /C calc'!A0", Country: "DE"},
		Titles: map[ids.Lease]billing.Title{of: {
			Lease: of, Name: "train", TypeName: "h100-sxm.8x.ndr", Instances: 2, Class: lease.OnDemand, SiteName: "fra1", ProjectName: "default",
			Tags: map[string]string{"team": "vision"},
		}},
	}
}

func usage(amount, tax int64, currency money.Currency) metering.Line {
	return metering.Line{
		Segment: 1, Kind: metering.Usage, Seq: 1, Description: "2 × h100-sxm.8x.ndr", From: start, To: start.Add(90 * time.Minute),
		Unit: "gpu_milliseconds", Quantity: money.UnitMillis(16, 90*time.Minute), Rate: money.Rate{Micros: 2_499_900, Currency: currency},
		Amount: money.Of(amount, currency), TaxRateBPS: 1_900, Tax: money.Of(tax, currency),
	}
}

// read parses what was written, by column.
func read(t require.TestingT, statements ...billing.Statement) []map[string]string {
	var out bytes.Buffer
	require.NoError(t, focus.Write(&out, statements))
	records, err := csv.NewReader(&out).ReadAll()
	require.NoError(t, err)
	var rows []map[string]string
	for _, record := range records[1:] {
		row := map[string]string{}
		for i, name := range records[0] {
			row[name] = record[i]
		}
		rows = append(rows, row)
	}
	return rows
}

func TestAUsageLineIsARowAndItsTaxAnother(t *testing.T) {
	t.Parallel()
	s := statement(money.USD, 0, usage(6_000, 1_140, money.USD))
	rows := read(t, s)
	require.Len(t, rows, 2)
	for name, want := range map[string]string{
		"BilledCost": "60.00", "EffectiveCost": "60.00", "BillingCurrency": "USD", "InvoiceId": "LH-000007",
		"BillingPeriodStart": "2026-02-01T00:00:00.000Z", "BillingPeriodEnd": "2026-03-01T00:00:00.000Z",
		"ChargePeriodStart": "2026-02-28T23:00:00.000Z", "ChargePeriodEnd": "2026-03-01T00:30:00.000Z",
		"ChargeCategory": "Usage", "ChargeClass": "", "ChargeFrequency": "Usage-Based", "PricingCategory": "Standard",
		"PricingQuantity": "24", "PricingUnit": "GPU Hours", "ListUnitPrice": "2.499900", "ContractedCost": "59.9976", "ListCost": "59.9976",
		"CapacityReservationId": s.Lease.String(), "CapacityReservationStatus": "Used", "RegionName": "fra1", "ServiceCategory": "Compute",
		"Tags": `{"team":"vision"}`, "BillingAccountName": `'=cmd|' /C calc'!A0`,
	} {
		require.Equal(t, want, rows[0][name], name)
	}
	for name, want := range map[string]string{
		"ChargeCategory": "Tax", "BilledCost": "11.40", "ChargeDescription": "Tax, 19.00 %", "PricingQuantity": "", "ConsumedQuantity": "",
		"SkuId": "", "PricingCategory": "", "CapacityReservationId": "",
	} {
		require.Equal(t, want, rows[1][name], name)
	}
}

func TestWhatWasPaidInAdvanceIsNotBilledAgainAndKeepsItsCost(t *testing.T) {
	t.Parallel()
	rows := read(t, statement(money.USD, 7_140, usage(6_000, 1_140, money.USD)))
	require.Equal(t, "0.00", rows[0]["BilledCost"])
	require.Equal(t, "60.00", rows[0]["EffectiveCost"])
	require.Equal(t, "0.00", rows[1]["BilledCost"])
	require.Equal(t, "11.40", rows[1]["EffectiveCost"])
}

func TestAFeeIsForUnusedCapacityAndACorrectionSaysSo(t *testing.T) {
	t.Parallel()
	fee, fix := usage(500, 95, money.USD), usage(-100, -19, money.USD)
	fee.Kind, fee.Description = metering.Fee, "Cancellation fee, 50 %"
	fix.Kind, fix.Quantity = metering.Correction, big.NewInt(-144_000)
	rows := read(t, statement(money.USD, 0, fee, fix))
	require.Equal(t, []string{"Unused", "1", "Fees", "5.00"},
		[]string{rows[0]["CapacityReservationStatus"], rows[0]["PricingQuantity"], rows[0]["PricingUnit"], rows[0]["ContractedCost"]})
	require.Equal(t, []string{"Usage", "Correction", "-1.00"}, []string{rows[2]["ChargeCategory"], rows[2]["ChargeClass"], rows[2]["BilledCost"]})
	require.Equal(t, "Correction", rows[3]["ChargeClass"], "its tax")
}

func TestEveryCurrencyHasItsOwnDigits(t *testing.T) {
	t.Parallel()
	for currency, want := range map[money.Currency]string{money.JPY: "6000", money.KWD: "6.000", money.EUR: "60.00"} {
		require.Equal(t, want, read(t, statement(currency, 0, usage(6_000, 0, currency)))[0]["BilledCost"], currency)
	}
}

func TestALineOfALeaseWithoutATitleIsRefused(t *testing.T) {
	t.Parallel()
	s := statement(money.USD, 0, usage(1, 0, money.USD))
	clear(s.Titles)
	require.Error(t, focus.Write(&bytes.Buffer{}, []billing.Statement{s}))
}

func TestTheRowsOfAnInvoiceSumToWhatIsPayable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		currency := rapid.SampledFrom([]money.Currency{money.USD, money.JPY, money.KWD}).Draw(t, "currency")
		var lines []metering.Line
		total := int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "lines") {
			line := usage(rapid.Int64Range(-5_000, 1_000_000_000).Draw(t, "amount"), rapid.Int64Range(0, 9_999).Draw(t, "tax"), currency)
			total += line.Amount.Minor + line.Tax.Minor
			lines = append(lines, line)
		}
		s := statement(currency, rapid.Int64Range(0, max(0, total)).Draw(t, "prepaid"), lines...)
		billed, effective := new(big.Rat), new(big.Rat)
		for _, row := range read(t, s) {
			billed.Add(billed, number(t, row["BilledCost"]))
			effective.Add(effective, number(t, row["EffectiveCost"]))
		}
		require.Zero(t, billed.Cmp(major(t, s.Payable)), "billed %s, payable %s", billed, s.Payable)
		require.Zero(t, effective.Cmp(major(t, s.Total)), "effective %s, total %s", effective, s.Total)
	})
}

func number(t require.TestingT, text string) *big.Rat {
	n, ok := new(big.Rat).SetString(text)
	require.True(t, ok, text)
	return n
}

func major(t require.TestingT, a money.Amount) *big.Rat {
	exponent, err := a.Currency.Exponent()
	require.NoError(t, err)
	return new(big.Rat).SetFrac(big.NewInt(a.Minor), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exponent)), nil))
}
