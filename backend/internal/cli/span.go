package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const day = 24 * time.Hour

// span is a flag for how long: Go's durations, and days and weeks before them, since leases are that long: 30d, 1d12h, 2w.
type span time.Duration

var _ pflag.Value = (*span)(nil)

// Set implements pflag.Value.
func (s *span) Set(text string) error {
	parts := regexp.MustCompile(`^(?:(\d{1,4})w)?(?:(\d{1,5})d)?(.*)$`).FindStringSubmatch(text)
	total := time.Duration(number(parts[1]))*7*day + time.Duration(number(parts[2]))*day
	if parts[3] != "" {
		rest, err := time.ParseDuration(parts[3])
		if err != nil {
			return fmt.Errorf("want a duration like 90m, 48h, 30d or 1d12h")
		}
		total += rest
	}
	if text == "" || total <= 0 {
		return fmt.Errorf("want a duration above zero, like 90m, 48h or 30d")
	}
	*s = span(total)
	return nil
}

func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // digits only, and few, or nothing at all
	return n
}

// String implements pflag.Value.
func (s *span) String() string {
	if *s == 0 {
		return ""
	}
	return short(time.Duration(*s))
}

// Type implements pflag.Value.
func (s *span) Type() string { return "duration" }

// short writes a duration without the units that are zero, and with days: 1h, 3m46s, 7d, 1d12h.
func short(d time.Duration) string {
	if d < 0 {
		return "-" + short(-d)
	}
	var text strings.Builder
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := d / unit.size; n > 0 {
			fmt.Fprintf(&text, "%d%s", n, unit.name)
			d %= unit.size
		}
	}
	if text.Len() == 0 {
		return "0s"
	}
	return text.String()
}
