package postgres

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// textArray is a text[] column; it is never NULL.
type textArray []string

// Value implements driver.Valuer: the array's text form, with every element quoted.
func (a textArray) Value() (driver.Value, error) {
	quoted := make([]string, len(a))
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i, s := range a {
		quoted[i] = `"` + escape.Replace(s) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}", nil
}

// Scan implements sql.Scanner.
func (a *textArray) Scan(src any) error {
	if err := pgtype.NewMap().SQLScanner((*[]string)(a)).Scan(src); err != nil {
		return fmt.Errorf("scan text array: %w", err)
	}
	return nil
}
