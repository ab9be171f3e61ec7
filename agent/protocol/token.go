package protocol

import (
	"crypto/sha256"
	"encoding/base64"
	"time"
)

// BodyHash is the value of ClaimBody: unpadded base64url of the SHA-256 of the body's bytes as they travel, which is after
// compression when the request has a Content-Encoding. A request without a body hashes the empty string.
func BodyHash(body []byte) string {
	sum := sha256.Sum256(body)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// FormatServerTime is the value of HeaderServerTime. It keeps the fraction of the second, since agents take their clock's
// offset from it.
func FormatServerTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
