package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
)

// Ledger keeps the books. Tenants read their own; every write steps into the platform role.
type Ledger struct{ db *DB }

// NewLedger returns the books of db.
func NewLedger(db *DB) *Ledger { return &Ledger{db: db} }

var _ ledger.Store = (*Ledger)(nil)

// AsPlatform implements ledger.Store.
func (s *Ledger) AsPlatform(ctx context.Context, fn func(ctx context.Context) error) error {
	return s.db.asPlatform(ctx, fn)
}

// accountID is the same for the same account on every process and machine, so that no posting has to look one up.
func accountID(a ledger.Account) [16]byte {
	org := a.Org.UUID()
	sum := sha256.Sum256(append(org[:], "/"+string(a.Kind)+"/"+string(a.Currency)...))
	var id [16]byte
	copy(id[:], sum[:])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // a UUIDv8 (RFC 9562)
	return id
}

const insertAccount = `INSERT INTO ledger_account (id, org_id, kind, currency) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`

// Lock implements ledger.Store.
func (s *Ledger) Lock(ctx context.Context, org ids.Org, currency money.Currency) (ledger.Balance, error) {
	var balance ledger.Balance
	err := s.platformRaw(ctx, func(conn *pgx.Conn) error {
		var found int
		var err error
		if balance, found, err = readBalance(ctx, conn, org, currency, " FOR NO KEY UPDATE OF b"); err != nil || found == 2 {
			return err
		}
		if err := openAccounts(ctx, conn, org, currency); err != nil {
			return err
		}
		balance, _, err = readBalance(ctx, conn, org, currency, " FOR NO KEY UPDATE OF b")
		return err
	})
	if err != nil {
		return ledger.Balance{}, fmt.Errorf("lock balances: %w", translate(err))
	}
	return balance, nil
}

// readBalance reads the guarded rows in the order in which everybody locks them: cash, held. It says how many there are.
func readBalance(ctx context.Context, conn *pgx.Conn, org ids.Org, currency money.Currency, lock string) (ledger.Balance, int, error) {
	none := money.Of(0, currency)
	balance, found := ledger.Balance{Org: org, Cash: none, Held: none, CreditLimit: none}, 0
	rows, err := conn.Query(ctx, `SELECT b.kind, b.balance_minor, b.floor_minor FROM ledger_balance b
		WHERE b.org_id = $1 AND b.currency = $2 ORDER BY b.kind`+lock, org, string(currency))
	if err != nil {
		return balance, 0, fmt.Errorf("read balances: %w", err)
	}
	var kind string
	var minor, floor int64
	_, err = pgx.ForEachRow(rows, []any{&kind, &minor, &floor}, func() error {
		found++
		switch ledger.AccountKind(kind) {
		case ledger.Cash:
			balance.Cash, balance.CreditLimit = money.Of(minor, currency), money.Of(-floor, currency)
		case ledger.Held:
			balance.Held = money.Of(minor, currency)
		case ledger.Promo, ledger.Receivable, ledger.Payable, ledger.Earned, ledger.Fees, ledger.Tax,
			ledger.SLAExpense, ledger.Breakage, ledger.PaymentClearing:
			return fmt.Errorf("balance of %s is not guarded", kind)
		default:
			return fmt.Errorf("unknown account kind %q", kind)
		}
		return nil
	})
	if err != nil {
		return balance, 0, fmt.Errorf("read balances: %w", err)
	}
	return balance, found, nil
}

// openAccounts makes the guarded accounts of an organization. Of several at once, all but the first find them made.
func openAccounts(ctx context.Context, conn *pgx.Conn, org ids.Org, currency money.Currency) error {
	batch := &pgx.Batch{}
	for _, kind := range []ledger.AccountKind{ledger.Cash, ledger.Held} {
		id := accountID(ledger.Account{Org: org, Kind: kind, Currency: currency})
		batch.Queue(insertAccount, id, org, string(kind), string(currency))
		batch.Queue(`
			INSERT INTO ledger_balance (account_id, org_id, kind, currency, balance_minor, floor_minor)
			SELECT $1, o.id, $3, $4, 0, CASE WHEN $3 = 'cash' AND o.currency = $4 THEN -o.credit_limit_minor ELSE 0 END
			FROM organization o WHERE o.id = $2 ON CONFLICT DO NOTHING`, id, org, string(kind), string(currency))
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("open accounts: %w", err)
	}
	return nil
}

// Balance implements ledger.Store.
func (s *Ledger) Balance(ctx context.Context, org ids.Org) (ledger.Balance, error) {
	var balance ledger.Balance
	err := raw(ctx, func(conn *pgx.Conn) error {
		var currency string
		var limit int64
		err := conn.QueryRow(ctx, `SELECT currency, credit_limit_minor FROM organization WHERE id = $1`, org).Scan(&currency, &limit)
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "organization-not-found", "there is no such organization")
		}
		if err != nil {
			return fmt.Errorf("read organization: %w", err)
		}
		var found int
		if balance, found, err = readBalance(ctx, conn, org, money.Currency(currency), ""); err == nil && found == 0 {
			balance.CreditLimit = money.Of(limit, money.Currency(currency)) // no accounts yet
		}
		return err
	})
	return balance, err
}

// SetCreditLimit implements ledger.Store.
func (s *Ledger) SetCreditLimit(ctx context.Context, org ids.Org, limit money.Amount) error {
	err := s.platformRaw(ctx, func(conn *pgx.Conn) error {
		changed, err := conn.Exec(ctx, `UPDATE organization SET credit_limit_minor = $2, version = version + 1 WHERE id = $1 AND currency = $3`,
			org, limit.Minor, string(limit.Currency))
		if err != nil {
			return fmt.Errorf("update organization: %w", err)
		}
		if changed.RowsAffected() == 0 {
			return fault.New(fault.Invalid, "currency-differs", "a credit limit is in the organization's own currency")
		}
		_, err = conn.Exec(ctx, `UPDATE ledger_balance SET floor_minor = $2 WHERE org_id = $1 AND kind = 'cash' AND currency = $3`,
			org, -limit.Minor, string(limit.Currency))
		return err
	})
	if err != nil {
		return fmt.Errorf("set credit limit: %w", translate(err))
	}
	return nil
}

// Posted implements ledger.Store.
func (s *Ledger) Posted(ctx context.Context, reference string) (money.Amount, bool, error) {
	var size money.Amount
	found := false
	err := s.platformRaw(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT sum(e.amount_minor) FILTER (WHERE e.amount_minor > 0), min(e.currency)
			FROM ledger_tx t JOIN ledger_entry e ON e.tx_id = t.id WHERE t.reference = $1 GROUP BY t.id`, reference)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&size.Minor, &size.Currency}, func() error {
			found = true
			return nil
		})
		return err
	})
	if err != nil {
		return money.Amount{}, false, fmt.Errorf("look for posting: %w", translate(err))
	}
	return size, found, nil
}

// Post implements ledger.Store, in one round trip.
func (s *Ledger) Post(ctx context.Context, tx ledger.Tx) error {
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO ledger_tx (id, org_id, kind, reference, lease_id, memo, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		tx.ID, tx.Org, string(tx.Kind), tx.Reference, tx.Lease, tx.Memo, tx.At)
	for _, e := range tx.Entries {
		id := accountID(e.Account)
		if !e.Account.Kind.Guarded() { // the guarded ones were opened by Lock
			batch.Queue(insertAccount, id, e.Account.Org, string(e.Account.Kind), string(e.Account.Currency))
		}
		batch.Queue(`INSERT INTO ledger_entry (id, tx_id, account_id, org_id, currency, amount_minor) VALUES ($1, $2, $3, $4, $5, $6)`,
			ids.Make[ids.Entry](), tx.ID, id, e.Account.Org, string(e.Amount.Currency), e.Amount.Minor)
		if e.Account.Kind.Guarded() {
			batch.Queue(`UPDATE ledger_balance SET balance_minor = balance_minor - $2 WHERE account_id = $1`, id, e.Amount.Minor)
		}
	}
	err := s.platformRaw(ctx, func(conn *pgx.Conn) error { return conn.SendBatch(ctx, batch).Close() })
	if err != nil {
		return fmt.Errorf("post %s: %w", tx.Reference, translate(err))
	}
	return nil
}

// Transactions implements ledger.Store.
func (s *Ledger) Transactions(ctx context.Context, org ids.Org, after ids.LedgerTx, limit int) ([]ledger.Tx, error) {
	var found []ledger.Tx
	err := raw(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT t.id, t.kind, t.reference, t.lease_id, t.memo, t.created_at, a.kind, e.currency, e.amount_minor
			FROM (SELECT * FROM ledger_tx WHERE org_id = $1
			        AND ($2::uuid IS NULL OR (created_at, id) < (SELECT created_at, id FROM ledger_tx WHERE id = $2))
			      ORDER BY created_at DESC, id DESC LIMIT $3) t
			LEFT JOIN ledger_entry e ON e.tx_id = t.id AND e.org_id = $1 LEFT JOIN ledger_account a ON a.id = e.account_id
			ORDER BY t.created_at DESC, t.id DESC, a.kind`, org, after, limit)
		if err != nil {
			return err
		}
		found, err = collectTransactions(rows, org)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read transactions: %w", err)
	}
	return found, nil
}

func collectTransactions(rows pgx.Rows, org ids.Org) ([]ledger.Tx, error) {
	found := []ledger.Tx{}
	var tx ledger.Tx
	var at time.Time
	var txKind string
	var kind, currency *string
	var minor *int64
	_, err := pgx.ForEachRow(rows, []any{&tx.ID, &txKind, &tx.Reference, &tx.Lease, &tx.Memo, &at, &kind, &currency, &minor}, func() error {
		if len(found) == 0 || found[len(found)-1].ID != tx.ID {
			found = append(found, ledger.Tx{
				ID: tx.ID, Org: org, Kind: ledger.TxKind(txKind), Reference: tx.Reference, Lease: tx.Lease, Memo: tx.Memo, At: at.UTC(),
			})
		}
		if kind != nil && currency != nil && minor != nil {
			last, c := &found[len(found)-1], money.Currency(*currency)
			account := ledger.Account{Org: org, Kind: ledger.AccountKind(*kind), Currency: c}
			last.Entries = append(last.Entries, ledger.Entry{Account: account, Amount: money.Of(*minor, c)})
		}
		return nil
	})
	return found, err
}

// platformRaw runs fn on the transaction's pgx connection in the platform role.
func (s *Ledger) platformRaw(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	return s.db.asPlatform(ctx, func(ctx context.Context) error { return raw(ctx, fn) })
}
