package postgres

import "testing"

func TestMoneyRowsHaveTheirTablesColumns(t *testing.T) {
	t.Parallel()
	requireColumns(t, holdRow{}, chargeLineRow{}, ratingRunRow{}, invoiceRow{}, paymentRow{}, gatewayEventRow{})
}
