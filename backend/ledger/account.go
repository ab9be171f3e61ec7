// Package ledger is the double-entry book of who has what: customers' cash and what is held of it for leases, what was earned,
// what is owed to providers and to the state. The README has its words and signs.
package ledger

import (
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// AccountKind says what an account is for.
type AccountKind string

// The kinds of account, by owner: customers', a provider's, the platform's.
const (
	Cash       AccountKind = "cash"
	Held       AccountKind = "held"
	Promo      AccountKind = "promo"
	Receivable AccountKind = "receivable"

	Payable AccountKind = "payable"

	Earned          AccountKind = "earned"
	Fees            AccountKind = "fees"
	Tax             AccountKind = "tax"
	SLAExpense      AccountKind = "sla_expense"
	Breakage        AccountKind = "breakage"
	PaymentClearing AccountKind = "payment_clearing"
)

// Platforms reports whether the platform owns accounts of this kind; the others belong to an organization.
func (k AccountKind) Platforms() bool {
	switch k {
	case Earned, Fees, Tax, SLAExpense, Breakage, PaymentClearing:
		return true
	case Cash, Held, Promo, Receivable, Payable:
		return false
	default:
		return false
	}
}

// Guarded reports whether the account has a balance row that is kept with every posting and cannot fall below its floor.
func (k AccountKind) Guarded() bool { return k == Cash || k == Held }

// Account is one account. Org is zero for the platform's own.
type Account struct {
	Org      ids.Org
	Kind     AccountKind
	Currency money.Currency
}

// Balance is what a customer has in one currency.
type Balance struct {
	Org         ids.Org
	Cash        money.Amount // negative: a debt, within the credit limit
	Held        money.Amount
	CreditLimit money.Amount
}

// Available returns what a new hold may take.
func (b Balance) Available() money.Amount { return b.Cash.Add(b.CreditLimit) }
