package postgres

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/billing"
)

// moneyChecks are the invariants 4 and 5 of the domain as queries for what breaks them: a name and by how much.
func moneyChecks() []struct{ claim, sql string } {
	return []struct{ claim, sql string }{
		{"every ledger transaction sums to zero", `
			SELECT t.reference AS what, e.currency || ' ' || sum(e.amount_minor) AS found
			FROM ledger_entry e JOIN ledger_tx t ON t.id = e.tx_id GROUP BY t.reference, e.currency HAVING sum(e.amount_minor) <> 0`},
		{"every guarded balance is the sum of its entries", `
			SELECT b.org_id || ' ' || b.kind AS what, b.balance_minor || ' instead of ' || coalesce(-sum(e.amount_minor), 0) AS found
			FROM ledger_balance b LEFT JOIN ledger_entry e ON e.account_id = b.account_id
			GROUP BY b.account_id HAVING b.balance_minor <> coalesce(-sum(e.amount_minor), 0)`},
		{"no balance is below its floor, and the floor of cash is the credit limit", `
			SELECT b.org_id || ' ' || b.kind AS what, b.balance_minor || ' with floor ' || b.floor_minor AS found
			FROM ledger_balance b JOIN organization o ON o.id = b.org_id
			WHERE b.balance_minor < b.floor_minor
			   OR b.floor_minor <> CASE WHEN b.kind = 'cash' AND b.currency = o.currency THEN -o.credit_limit_minor ELSE 0 END`},
		{"what is held is what the holds have left", `
			SELECT b.org_id::text AS what, b.balance_minor || ' instead of ' || coalesce(sum(h.amount_minor - h.captured_minor - h.released_minor), 0) AS found
			FROM ledger_balance b LEFT JOIN hold h ON h.org_id = b.org_id AND h.currency = b.currency
			WHERE b.kind = 'held'
			GROUP BY b.account_id HAVING b.balance_minor <> coalesce(sum(h.amount_minor - h.captured_minor - h.released_minor), 0)`},
		{"every lease's charge lines are what was captured from its hold", `
			SELECT h.lease_id::text AS what, h.captured_minor || ' captured, ' || coalesce(sum(c.amount_minor + c.tax_minor), 0) || ' charged' AS found
			FROM hold h LEFT JOIN charge_line c ON c.lease_id = h.lease_id
			GROUP BY h.id HAVING h.captured_minor <> coalesce(sum(c.amount_minor + c.tax_minor), 0)`},
		{"all charge lines together are the invoices and what is not invoiced", `
			SELECT org_id::text AS what, charged || ' charged, ' || invoiced || ' invoiced, ' || unbilled || ' unbilled' AS found
			FROM (SELECT o.id AS org_id,
			        (SELECT coalesce(sum(amount_minor + tax_minor), 0) FROM charge_line c WHERE c.org_id = o.id) AS charged,
			        (SELECT coalesce(sum(total_minor), 0) FROM invoice i WHERE i.org_id = o.id AND i.state <> 'void') AS invoiced,
			        (SELECT coalesce(sum(amount_minor + tax_minor), 0) FROM charge_line c WHERE c.org_id = o.id AND c.invoice_id IS NULL) AS unbilled
			      FROM organization o) sums
			WHERE charged <> invoiced + unbilled`},
		{"every invoice is the sum of its lines", `
			SELECT i.id::text AS what, i.subtotal_minor || ' + ' || i.tax_minor || ' tax, lines ' || coalesce(sum(c.amount_minor), 0) || ' + ' || coalesce(sum(c.tax_minor), 0) AS found
			FROM invoice i LEFT JOIN charge_line c ON c.invoice_id = i.id WHERE i.state <> 'void'
			GROUP BY i.id HAVING i.subtotal_minor <> coalesce(sum(c.amount_minor), 0) OR i.tax_minor <> coalesce(sum(c.tax_minor), 0)`},
		{"invoice numbers have no gaps", `
			SELECT k.issuer AS what, k.last || ' drawn, ' || (SELECT count(*) FROM invoice WHERE number IS NOT NULL) || ' used' AS found
			FROM invoice_counter k WHERE k.last <> (SELECT count(*) FROM invoice WHERE number IS NOT NULL)`},
		{"every lease that is over is settled: its hold is closed", `
			SELECT l.id::text AS what, l.state || ', ' || (h.amount_minor - h.captured_minor - h.released_minor) || ' still held' AS found
			FROM lease l JOIN hold h ON h.lease_id = l.id WHERE l.state IN ('closed', 'cancelled') AND h.closed_at IS NULL`},
		{"top-ups in the books are the payments that succeeded", `
			SELECT org_id::text AS what, paid || ' paid, ' || booked || ' booked' AS found
			FROM (SELECT o.id AS org_id,
			        (SELECT coalesce(sum(amount_minor), 0) FROM payment p WHERE p.org_id = o.id AND p.kind = 'top_up' AND p.state = 'succeeded') AS paid,
			        (SELECT coalesce(sum(e.amount_minor), 0) FROM ledger_tx t JOIN ledger_entry e ON e.tx_id = t.id
			         WHERE t.org_id = o.id AND t.kind = 'top_up' AND e.amount_minor > 0) AS booked
			      FROM organization o) sums
			WHERE paid <> booked`},
	}
}

// Check looks for breaches of the money's invariants in the whole database. Each claim is one statement, hence sees one
// snapshot: a live database does not look broken.
func (s *Invoices) Check(ctx context.Context) ([]billing.Breach, error) {
	breaches := []billing.Breach{}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		for _, check := range moneyChecks() {
			var found []billing.Breach
			if err := conn(ctx).Raw(check.sql + " LIMIT 100").Scan(&found).Error; err != nil {
				return fmt.Errorf("check that %s: %w", check.claim, err)
			}
			for _, b := range found {
				b.Claim = check.claim
				breaches = append(breaches, b)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check money: %w", err)
	}
	return breaches, nil
}
