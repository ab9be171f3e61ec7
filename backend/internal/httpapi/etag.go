package httpapi

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/backend/fault"
)

// etag is the entity tag of a contract's version, e.g. "7" with the quotes.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// ifMatch reads the version that the client saw. Missing: Stale with the code precondition-required, which becomes 428. What names no
// single version (*, a list) or is no entity tag is a malformed request, 400. Any other tag than one of ours, a weak one included, is
// one that does not match: Stale, 412.
func ifMatch(header *string) (int64, error) {
	text := ""
	if header != nil {
		text = strings.TrimSpace(*header)
	}
	if err := checkIfMatch(text); err != nil {
		return 0, err
	}
	version, err := strconv.ParseInt(strings.Trim(text, `"`), 10, 64)
	if err != nil || version < 1 {
		return 0, errStale()
	}
	return version, nil
}

// checkIfMatch refuses a header that cannot name the one version that a change was decided on, whatever the version is now. RFC 9110
// lets "*" match whatever there is, which is the lost update that the header is there to prevent; so it is not supported here.
func checkIfMatch(text string) error {
	switch {
	case text == "":
		return errPreconditionRequired()
	case text == "*":
		return errNotOneVersion("If-Match: * is not supported, since a change names the version that it was decided on")
	case strings.Contains(text, ","):
		return errNotOneVersion("If-Match has more than one ETag; a change names the one version that it was decided on")
	case !entityTag().MatchString(text):
		return errNotOneVersion(`If-Match is not an ETag, which looks like "7", with its quotes`)
	default:
		return nil
	}
}

// entityTag is RFC 9110's form of an entity tag, weak ones included.
func entityTag() *regexp.Regexp { return regexp.MustCompile(`^(W/)?"[\x21\x23-\x7e]*"$`) }

func errNotOneVersion(detail string) error {
	return &protocolError{status: http.StatusBadRequest, code: "if-match-not-one-version", detail: detail + "; send the ETag that you read"}
}

const codePreconditionRequired = "precondition-required"

func errPreconditionRequired() error {
	return fault.New(fault.Stale, codePreconditionRequired, "send If-Match with the ETag that you read")
}

func errStale() error {
	return fault.New(fault.Stale, "stale", "it has changed since you read it; read it again")
}
