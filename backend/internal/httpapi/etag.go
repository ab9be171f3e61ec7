package httpapi

import (
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/backend/fault"
)

// etag is the entity tag of a contract's version, e.g. "7" with the quotes.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// ifMatch reads the version that the client saw. Missing: Stale with the code precondition-required, which becomes 428; not one
// of our tags, or a list of them, or *: Stale (412), since a change must name exactly the version that it was decided on.
func ifMatch(header *string) (int64, error) {
	if header == nil || strings.TrimSpace(*header) == "" {
		return 0, errPreconditionRequired()
	}
	text := strings.TrimSpace(*header)
	unquoted, err := strconv.Unquote(text)
	if err != nil || !strings.HasPrefix(text, `"`) {
		return 0, errStale()
	}
	version, err := strconv.ParseInt(unquoted, 10, 64)
	if err != nil || version < 1 {
		return 0, errStale()
	}
	return version, nil
}

const codePreconditionRequired = "precondition-required"

func errPreconditionRequired() error {
	return fault.New(fault.Stale, codePreconditionRequired, "send If-Match with the ETag that you read")
}

func errStale() error {
	return fault.New(fault.Stale, "stale", "it has changed since you read it; read it again")
}
