package postgres

import (
	"database/sql/driver"
	"fmt"
	"math/big"
)

// integerText is a numeric(…, 0) column: an integer of any size.
type integerText struct{ *big.Int }

// Value implements driver.Valuer.
func (i integerText) Value() (driver.Value, error) {
	if i.Int == nil {
		return "0", nil
	}
	return i.String(), nil
}

// Scan implements sql.Scanner.
func (i *integerText) Scan(src any) error {
	text, ok := src.(string)
	if !ok {
		return fmt.Errorf("scan integer: unexpected %T", src)
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return fmt.Errorf("scan integer: %q is none", text)
	}
	i.Int = n
	return nil
}
