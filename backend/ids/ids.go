// Package ids has the identifiers of everything Leasehold names: a UUIDv7 (RFC 9562) that people see with a prefix, in the
// typeid form (lease_01j…): lower-case Crockford base32, 26 characters, sortable by creation. PostgreSQL stores the uuid.
package ids

import (
	"crypto/rand"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Kind names what an ID identifies; it is the prefix that people see.
type Kind interface{ prefix() string }

// ID identifies one thing of kind K. The zero value identifies nothing (IsZero) and is stored as NULL.
type ID[K Kind] struct{ uuid [16]byte }

// New returns a fresh, sortable id.
func New[K Kind]() ID[K] { return ID[K]{uuid: newUUIDv7()} }

// FromUUID wraps a uuid that came from the database or was derived.
func FromUUID[K Kind](uuid [16]byte) ID[K] { return ID[K]{uuid: uuid} }

// Parse reads the prefixed form. It never says whether the thing exists.
func Parse[K Kind](s string) (ID[K], error) {
	var k K
	suffix, ok := strings.CutPrefix(s, k.prefix()+"_")
	if !ok {
		return ID[K]{}, fmt.Errorf("parse id: want %s_…", k.prefix())
	}
	uuid, err := decode(suffix)
	if err != nil {
		return ID[K]{}, fmt.Errorf("parse %s id: %w", k.prefix(), err)
	}
	return ID[K]{uuid: uuid}, nil
}

// MustParse is Parse for constants in tests.
func MustParse[K Kind](s string) ID[K] {
	id, err := Parse[K](s)
	if err != nil {
		panic(err) //nolint:forbidigo // for constants in tests
	}
	return id
}

// UUID returns the sixteen bytes.
func (id ID[K]) UUID() [16]byte { return id.uuid }

// IsZero reports whether the id identifies nothing.
func (id ID[K]) IsZero() bool { return id.uuid == [16]byte{} }

// String returns the prefixed form, or "" for the zero id.
func (id ID[K]) String() string {
	if id.IsZero() {
		return ""
	}
	var k K
	return k.prefix() + "_" + encode(id.uuid)
}

// MarshalText implements encoding.TextMarshaler (JSON included).
func (id ID[K]) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; the empty text is the zero id.
func (id *ID[K]) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*id = ID[K]{}
		return nil
	}
	got, err := Parse[K](string(b))
	if err != nil {
		return err
	}
	*id = got
	return nil
}

// Value implements driver.Valuer: the uuid's text form, NULL for the zero id.
func (id ID[K]) Value() (driver.Value, error) {
	if id.IsZero() {
		return nil, nil //nolint:nilnil // NULL is what the zero id means to the database
	}
	return id.uuidText(), nil
}

// Scan implements sql.Scanner for uuid columns.
func (id *ID[K]) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*id = ID[K]{}
		return nil
	case string:
		return id.scanText(v)
	case []byte:
		if len(v) == 16 {
			copy(id.uuid[:], v)
			return nil
		}
		return id.scanText(string(v))
	case [16]byte:
		id.uuid = v
		return nil
	default:
		return fmt.Errorf("scan id: unexpected %T", src)
	}
}

func (id *ID[K]) scanText(s string) error {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		return fmt.Errorf("scan id: %q is not a uuid", s)
	}
	copy(id.uuid[:], b)
	return nil
}

func (id ID[K]) uuidText() string {
	h := hex.EncodeToString(id.uuid[:])
	return h[0:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// monotonic keeps ids of one process in the order in which they were made, also within one millisecond (RFC 9562, 6.2 method 3).
//
//nolint:gochecknoglobals // one sequence a process is the point
var monotonic struct {
	sync.Mutex
	last uint64
}

func newUUIDv7() [16]byte {
	var u [16]byte
	if _, err := rand.Read(u[6:]); err != nil {
		panic("ids: no randomness: " + err.Error()) //nolint:forbidigo // nothing can be named any more
	}
	// 48 bits of milliseconds, then 12 bits of sub-millisecond fraction.
	now := uint64(time.Now().UnixNano()) //nolint:forbidigo,gosec // the id's own stamp; the year is past 1970
	stamp := now/1e6<<12 | (now % 1e6 << 12 / 1e6)
	monotonic.Lock()
	if stamp <= monotonic.last {
		stamp = monotonic.last + 1
	}
	monotonic.last = stamp
	monotonic.Unlock()
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], stamp)
	// stamp is 60 bits: 48 of time in u[0:6], 12 of fraction under the version nibble.
	binary.BigEndian.PutUint64(t[:], stamp<<4)
	copy(u[0:6], t[0:6])
	u[6] = 0x70 | byte(stamp>>8&0x0f)
	u[7] = byte(stamp & 0xff)
	u[8] = u[8]&0x3f | 0x80
	return u
}

const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

func encode(u [16]byte) string {
	hi, lo := binary.BigEndian.Uint64(u[:8]), binary.BigEndian.Uint64(u[8:])
	var out [26]byte
	for i := 25; i >= 0; i-- {
		out[i] = alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(out[:])
}

func decode(s string) ([16]byte, error) {
	var u [16]byte
	if len(s) != 26 {
		return u, fmt.Errorf("want 26 characters, have %d", len(s))
	}
	if s[0] > '7' {
		return u, fmt.Errorf("value overflows 128 bits")
	}
	var hi, lo uint64
	for i := range len(s) {
		v := strings.IndexByte(alphabet, s[i])
		if v < 0 {
			return u, fmt.Errorf("character %q is not in the alphabet", s[i])
		}
		hi = hi<<5 | lo>>59
		lo = lo<<5 | uint64(v)
	}
	binary.BigEndian.PutUint64(u[:8], hi)
	binary.BigEndian.PutUint64(u[8:], lo)
	return u, nil
}
