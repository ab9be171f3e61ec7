// Package money has amounts in minor units, rates in micro-units, and the one rounding rule. There are no floats.
package money

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Currency is an ISO 4217 code.
type Currency string

// The currencies that Leasehold sells in.
const (
	USD Currency = "USD"
	EUR Currency = "EUR"
	CNY Currency = "CNY"
	JPY Currency = "JPY"
	KWD Currency = "KWD"
)

// Exponent returns how many decimal digits the minor unit has (ISO 4217), e.g. 2 for USD, 0 for JPY, 3 for KWD.
func (c Currency) Exponent() (int, error) {
	switch c {
	case USD, EUR, CNY:
		return 2, nil
	case JPY:
		return 0, nil
	case KWD:
		return 3, nil
	default:
		return 0, fmt.Errorf("currency %q is not supported", string(c))
	}
}

// Amount is an integer number of minor units (cents, yen, fils) of one currency. It may be negative.
type Amount struct {
	Minor    int64    `json:"amount"`
	Currency Currency `json:"currency"`
}

// Of returns minor units of a currency.
func Of(minor int64, currency Currency) Amount { return Amount{Minor: minor, Currency: currency} }

// Add returns a + b. Adding across currencies is a defect and panics: it must never be decided by data.
func (a Amount) Add(b Amount) Amount {
	a.mustMatch(b)
	return Amount{Minor: a.Minor + b.Minor, Currency: a.Currency}
}

// Sub returns a − b.
func (a Amount) Sub(b Amount) Amount {
	a.mustMatch(b)
	return Amount{Minor: a.Minor - b.Minor, Currency: a.Currency}
}

// Neg returns −a.
func (a Amount) Neg() Amount { return Amount{Minor: -a.Minor, Currency: a.Currency} }

// IsZero reports whether the amount is nothing.
func (a Amount) IsZero() bool { return a.Minor == 0 }

func (a Amount) mustMatch(b Amount) {
	if a.Currency != b.Currency {
		//nolint:forbidigo // a defect of ours, which no data can cause
		panic(fmt.Sprintf("money: mixed currencies %s and %s", a.Currency, b.Currency))
	}
}

// String renders the amount for people, e.g. "1,234.50 USD".
func (a Amount) String() string {
	exp, err := a.Currency.Exponent()
	if err != nil {
		return fmt.Sprintf("%d minor units %s", a.Minor, a.Currency)
	}
	sign, abs := "", new(big.Int).Abs(big.NewInt(a.Minor)).String()
	if a.Minor < 0 {
		sign = "-"
	}
	for len(abs) <= exp {
		abs = "0" + abs
	}
	whole, frac := abs[:len(abs)-exp], abs[len(abs)-exp:]
	out := sign + group(whole)
	if exp > 0 {
		out += "." + frac
	}
	return out + " " + string(a.Currency)
}

func group(digits string) string {
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return strings.Join(append([]string{digits}, parts...), ",")
}

// Rate is a price per unit-hour in micro-units (10⁻⁶) of the currency's major unit: $2.4999 per GPU-hour is 2_499_900.
type Rate struct {
	Micros   int64    `json:"micros"`
	Currency Currency `json:"currency"`
}

// String renders the rate for people, e.g. "2.4999 USD".
func (r Rate) String() string {
	s := strconv.FormatInt(r.Micros/1_000_000, 10) + "." + fmt.Sprintf("%06d", r.Micros%1_000_000)
	s = strings.TrimRight(s, "0")
	if strings.HasSuffix(s, ".") {
		s += "00"
	}
	return s + " " + string(r.Currency)
}

// Cost returns rate × quantity in minor units, rounded half-even once. Quantity is in unit-milliseconds: the number of
// rated units (GPUs, or instances for types rated per instance) times milliseconds.
//
// To charge in parts, always cost the cumulative quantity and subtract what was charged before; then any way of cutting
// sums to the rounding of the whole.
func (r Rate) Cost(unitMillis *big.Int) (Amount, error) {
	return Round(r.Exact(unitMillis), r.Currency)
}

// Exact returns rate × quantity before rounding, in micro-units times unit-milliseconds, so that costs at several rates of one currency
// can be summed before they are rounded.
func (r Rate) Exact(unitMillis *big.Int) *big.Int {
	return new(big.Int).Mul(big.NewInt(r.Micros), unitMillis)
}

// Round turns an exact cost, or a sum of them, into minor units, rounded half-even once.
func Round(exact *big.Int, currency Currency) (Amount, error) {
	exp, err := currency.Exponent()
	if err != nil {
		return Amount{}, err
	}
	// minor = micros/1e6 × 10^exp × unitMillis/3.6e6
	num := new(big.Int).Mul(exact, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exp)), nil))
	den := new(big.Int).Mul(big.NewInt(1_000_000), big.NewInt(int64(time.Hour/time.Millisecond)))
	minor := RoundHalfEven(num, den)
	if !minor.IsInt64() {
		return Amount{}, fmt.Errorf("cost %s exceeds the range of an amount", minor)
	}
	return Amount{Minor: minor.Int64(), Currency: currency}, nil
}

// UnitMillis returns units × d in unit-milliseconds; d is truncated to the millisecond.
func UnitMillis(units int64, d time.Duration) *big.Int {
	return new(big.Int).Mul(big.NewInt(units), big.NewInt(d.Milliseconds()))
}

// Share returns bps basis points (1/10,000) of the amount, rounded half-even.
func (a Amount) Share(bps int64) Amount {
	num := new(big.Int).Mul(big.NewInt(a.Minor), big.NewInt(bps))
	return Amount{Minor: RoundHalfEven(num, big.NewInt(10_000)).Int64(), Currency: a.Currency}
}

// RoundHalfEven divides num by den (> 0) and rounds to the nearest integer, ties to even.
func RoundHalfEven(num, den *big.Int) *big.Int {
	q, m := new(big.Int).DivMod(num, den, new(big.Int)) // Euclidean: 0 ≤ m < den
	switch twice := m.Lsh(m, 1).Cmp(den); {
	case twice > 0, twice == 0 && q.Bit(0) == 1:
		return q.Add(q, big.NewInt(1))
	default:
		return q
	}
}
