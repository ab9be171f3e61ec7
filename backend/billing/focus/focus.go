// Package focus writes invoices as FOCUS 1.2 rows (FinOps Open Cost and Usage Specification, https://focus.finops.org), which cost tools
// read. All of it is pure.
//
// A line is a row, and its tax another. What a customer paid in advance covers is billed at nothing and keeps its EffectiveCost, as the
// specification has it for prepaid purchases; so the BilledCost of an invoice's rows sums to what is payable on it, to the last minor unit.
package focus

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// timeFormat is ISO 8601 in UTC, to the millisecond, the grain of our quantities.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Write writes a header and the statements' rows as CSV (RFC 4180). An empty field is null.
func Write(w io.Writer, statements []billing.Statement) error {
	out := csv.NewWriter(w)
	if err := out.Write(columnNames()); err != nil {
		return fmt.Errorf("write FOCUS header: %w", err)
	}
	for _, statement := range statements {
		rows, err := Rows(statement)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := out.Write(row.fields()); err != nil {
				return fmt.Errorf("write FOCUS row: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write FOCUS rows: %w", err)
	}
	return nil
}

// Rows returns an invoice's rows, in the order of its lines.
func Rows(s billing.Statement) ([]Row, error) {
	share := newShare(s.Invoice)
	var rows []Row
	for _, line := range s.Lines {
		title, known := s.Titles[line.Lease]
		if !known {
			return nil, fmt.Errorf("invoice %s has a line of %s, which has no title", s.ID, line.Lease)
		}
		cost, err := chargeRow(s, title, line, share.of(line.Amount.Minor))
		if err != nil {
			return nil, fmt.Errorf("row of %s: %w", line.ID, err)
		}
		rows = append(rows, cost)
		if line.Tax.Minor == 0 {
			continue
		}
		tax, err := taxRow(s, title, line, share.of(line.Tax.Minor))
		if err != nil {
			return nil, fmt.Errorf("tax row of %s: %w", line.ID, err)
		}
		rows = append(rows, tax)
	}
	return rows, nil
}

// share spreads what is payable over the rows in proportion to their amounts, cumulatively, so that the rows sum to it exactly.
type share struct {
	payable, total *big.Int
	sofar, billed  int64
}

func newShare(i billing.Invoice) *share {
	return &share{payable: big.NewInt(i.Payable.Minor), total: big.NewInt(i.Total.Minor)}
}

func (s *share) of(minor int64) int64 {
	s.sofar += minor
	if s.total.Sign() <= 0 { // nothing to spread in proportion to: a bill of credits is payable (to the customer) as it stands
		return minor
	}
	due := money.RoundHalfEven(new(big.Int).Mul(big.NewInt(s.sofar), s.payable), s.total).Int64()
	part := due - s.billed
	s.billed = due
	return part
}

// chargeRow is the row of a line's net amount.
func chargeRow(s billing.Statement, title billing.Title, line billing.ChargeLine, billed int64) (Row, error) {
	row, err := baseRow(s, title, line)
	if err != nil {
		return Row{}, err
	}
	amount := decimal(line.Amount)
	row.ChargeDescription, row.EffectiveCost, row.PricingCurrencyEffectiveCost = line.Description, amount, amount
	row.BilledCost = decimal(money.Of(billed, line.Amount.Currency))
	row.ServiceName, row.SkuID = "GPU Leases", title.Type.String()
	switch line.Kind {
	case metering.Usage:
		row.ChargeCategory, row.CapacityReservationID, row.CapacityReservationStatus = "Usage", line.Lease.String(), "Used"
		row.price(quantity(line.Quantity), unitOf(line.Unit), line.Rate)
	case metering.Fee: // for capacity that was kept for the customer and not used
		row.ChargeCategory, row.CapacityReservationID, row.CapacityReservationStatus = "Usage", line.Lease.String(), "Unused"
		row.priceOnce("Fees", amount)
	case metering.Credit:
		row.ChargeCategory = "Credit"
		row.ContractedCost, row.ListCost = amount, amount
	case metering.Correction:
		row.ChargeCategory, row.ChargeClass, row.CapacityReservationID, row.CapacityReservationStatus = "Usage", "Correction", line.Lease.String(), "Used"
		row.ContractedCost, row.ListCost = amount, amount
	default:
		return Row{}, fmt.Errorf("line of kind %q", line.Kind)
	}
	return row, nil
}

func taxRow(s billing.Statement, title billing.Title, line billing.ChargeLine, billed int64) (Row, error) {
	row, err := baseRow(s, title, line)
	if err != nil {
		return Row{}, err
	}
	tax := decimal(line.Tax)
	row.ChargeCategory, row.ChargeDescription = "Tax", fmt.Sprintf("Tax, %s %%", decimalOf(big.NewInt(int64(line.TaxRateBPS)), 2))
	if line.Kind == metering.Correction {
		row.ChargeClass = "Correction"
	}
	row.BilledCost, row.EffectiveCost, row.PricingCurrencyEffectiveCost = decimal(money.Of(billed, line.Tax.Currency)), tax, tax
	row.ContractedCost, row.ListCost = tax, tax
	row.ServiceName = "Tax"
	row.ServiceCategory, row.ServiceSubcategory = "Other", "Other (Other)"
	return row, nil
}

// baseRow has what every row of a line says.
func baseRow(s billing.Statement, title billing.Title, line billing.ChargeLine) (Row, error) {
	tags, err := json.Marshal(nonNil(title.Tags))
	if err != nil {
		return Row{}, fmt.Errorf("write tags: %w", err)
	}
	month := time.Date(line.From.UTC().Year(), line.From.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	currency := string(line.Amount.Currency)
	return Row{
		BillingAccountID: s.Customer.ID.String(), BillingAccountName: plain(s.Customer.Name), BillingAccountType: "Organization",
		BillingCurrency: currency, PricingCurrency: currency,
		BillingPeriodStart: stamp(month), BillingPeriodEnd: stamp(month.AddDate(0, 1, 0)),
		ChargePeriodStart: stamp(line.From), ChargePeriodEnd: stamp(line.To), ChargeFrequency: "Usage-Based",
		InvoiceID: invoiceName(s.Invoice), InvoiceIssuerName: billing.IssuerName, ProviderName: billing.IssuerName, PublisherName: billing.IssuerName,
		RegionID: title.Site.String(), RegionName: title.SiteName,
		ResourceID: line.Lease.String(), ResourceName: plain(title.Name), ResourceType: "Lease",
		ServiceCategory: "Compute", ServiceSubcategory: "Virtual Machines",
		SubAccountID: title.Project.String(), SubAccountName: plain(title.ProjectName), SubAccountType: "Project", Tags: string(tags),
	}, nil
}

// invoiceName is the number on the invoice; a draft has none yet, and its rows may still change.
func invoiceName(i billing.Invoice) string { return i.Number }

// price fills what a quantity at a rate says. Its costs are exact: only what is billed is rounded to the minor unit.
func (r *Row) price(hours *big.Rat, unit string, rate money.Rate) {
	each := decimalOf(big.NewInt(rate.Micros), 6)
	cost := exact(new(big.Rat).Mul(hours, big.NewRat(rate.Micros, 1_000_000)))
	r.ConsumedQuantity, r.ConsumedUnit, r.PricingQuantity, r.PricingUnit = exact(hours), unit, exact(hours), unit
	r.PricingCategory, r.SkuMeter, r.SkuPriceID = "Standard", unit, r.SkuID+"@"+each
	r.ListUnitPrice, r.ContractedUnitPrice, r.PricingCurrencyListUnitPrice, r.PricingCurrencyContractedUnitPrice = each, each, each, each
	r.ListCost, r.ContractedCost = cost, cost
}

// priceOnce fills what one thing at its price says.
func (r *Row) priceOnce(unit, amount string) {
	r.ConsumedQuantity, r.ConsumedUnit, r.PricingQuantity, r.PricingUnit = "1", unit, "1", unit
	r.PricingCategory, r.SkuMeter, r.SkuPriceID = "Standard", unit, r.SkuID+"@"+unit
	r.ListUnitPrice, r.ContractedUnitPrice, r.PricingCurrencyListUnitPrice, r.PricingCurrencyContractedUnitPrice = amount, amount, amount, amount
	r.ListCost, r.ContractedCost = amount, amount
}

// unitOf names the unit of a price: GPU Hours or Instance Hours.
func unitOf(unit string) string {
	if strings.HasPrefix(unit, "gpu") {
		return "GPU Hours"
	}
	return "Instance Hours"
}

// quantity turns unit-milliseconds into unit-hours.
func quantity(unitMillis *big.Int) *big.Rat {
	return new(big.Rat).SetFrac(unitMillis, big.NewInt(time.Hour.Milliseconds()))
}

// exact writes a number with as many digits as cost tools keep, and no trailing zeros.
func exact(n *big.Rat) string {
	const digits = 12
	text := strings.TrimRight(n.FloatString(digits), "0")
	return strings.TrimSuffix(text, ".")
}

func decimal(a money.Amount) string {
	exponent, err := a.Currency.Exponent()
	if err != nil { // it was charged in this currency, which is supported
		exponent = 0
	}
	return decimalOf(big.NewInt(a.Minor), exponent)
}

// decimalOf writes n × 10^−places.
func decimalOf(n *big.Int, places int) string {
	return new(big.Rat).SetFrac(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(places)), nil)).FloatString(places)
}

func stamp(t time.Time) string { return t.UTC().Format(timeFormat) }

func nonNil(tags map[string]string) map[string]string {
	if tags == nil {
		return map[string]string{}
	}
	return tags
}
