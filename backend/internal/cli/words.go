package cli

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// percent renders basis points, e.g. 9950 → "99.5 %".
func percent(bps int64) string { return strconv.FormatFloat(float64(bps)/100, 'f', -1, 64) + " %" }

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func parseInstant(name, s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, usagef("--%s wants a time like 2026-12-24T18:00:00Z, not %q", name, s)
	}
	return t.UTC(), nil
}

func decodeBase64URL(s string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return nil, fmt.Errorf("decode base64url: %w", err)
	}
	return raw, nil
}
