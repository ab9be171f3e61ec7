package migrations

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Head returns the number of the newest migration.
func Head() (int64, error) {
	names, err := fs.Glob(FS, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list migrations: %w", err)
	}
	var head int64
	for _, name := range names {
		digits, _, _ := strings.Cut(name, "_")
		number, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("number of migration %s: %w", name, err)
		}
		head = max(head, number)
	}
	return head, nil
}
