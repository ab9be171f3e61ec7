package ledger

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// TxKind says what sort of affair a transaction is.
type TxKind string

// The kinds of transaction.
const (
	TopUpTx   TxKind = "top_up"
	HoldTx    TxKind = "hold"
	CaptureTx TxKind = "capture"
	ReleaseTx TxKind = "release"
	ShareTx   TxKind = "share"
	RefundTx  TxKind = "refund"
	CreditTx  TxKind = "credit"
)

// Entry is one line of a transaction: a debit when its amount is positive, a credit when negative.
type Entry struct {
	Account Account
	Amount  money.Amount
}

// Tx is a transaction. Its entries sum to zero.
type Tx struct {
	ID        ids.LedgerTx
	Org       ids.Org // whose affair it is, and who sees it
	Kind      TxKind
	Reference string // the effect's name, unique for ever
	Lease     ids.Lease
	Memo      string
	At        time.Time
	Entries   []Entry
}

// Size returns the sum of the debits.
func (t Tx) Size() money.Amount {
	var size money.Amount
	for _, e := range t.Entries {
		size.Currency = e.Amount.Currency
		size.Minor += max(e.Amount.Minor, 0)
	}
	return size
}

// check refuses what must never reach the books. A refusal is our own defect.
func (t Tx) check() error {
	if t.Reference == "" || t.Org.IsZero() || len(t.Entries) < 2 {
		return fmt.Errorf("ledger transaction %q is not complete", t.Reference)
	}
	sum, currency := int64(0), t.Entries[0].Amount.Currency
	for _, e := range t.Entries {
		switch {
		case e.Amount.IsZero():
			return fmt.Errorf("ledger transaction %q has an empty entry", t.Reference)
		case e.Amount.Currency != currency, e.Account.Currency != currency:
			return fmt.Errorf("ledger transaction %q mixes currencies", t.Reference)
		case e.Account.Kind.Platforms() != e.Account.Org.IsZero():
			return fmt.Errorf("ledger transaction %q has an account %s of the wrong owner", t.Reference, e.Account.Kind)
		}
		sum += e.Amount.Minor
	}
	if sum != 0 {
		return fmt.Errorf("ledger transaction %q does not sum to zero but to %d", t.Reference, sum)
	}
	return nil
}

// move is debit → credit of one amount; nothing for zero, and the other way round below zero.
func move(from, to Account, amount money.Amount) []Entry {
	if amount.IsZero() {
		return nil
	}
	return []Entry{{Account: from, Amount: amount}, {Account: to, Amount: amount.Neg()}}
}

// merged adds up entries of one account, so that a transaction names each account once.
func merged(entries []Entry) []Entry {
	var out []Entry
	at := make(map[Account]int, len(entries))
	for _, e := range entries {
		i, seen := at[e.Account]
		if !seen {
			at[e.Account] = len(out)
			out = append(out, e)
			continue
		}
		out[i].Amount = out[i].Amount.Add(e.Amount)
	}
	kept := out[:0]
	for _, e := range out {
		if !e.Amount.IsZero() {
			kept = append(kept, e)
		}
	}
	return kept
}

func customers(org ids.Org, kind AccountKind, c money.Currency) Account {
	return Account{Org: org, Kind: kind, Currency: c}
}

func platforms(kind AccountKind, c money.Currency) Account { return Account{Kind: kind, Currency: c} }
