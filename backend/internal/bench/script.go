package main

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/backend/ids"
)

// writer turns the statements of one recorded booking into a pgbench script that does the same work with other values: every id that
// the booking made becomes a fresh one, the customer's ids become those of whichever client runs the script, the node and the quote
// become the g-th, and every time in the lease's future moves by shift. All else (documents, prices, the request's time) stays as it was
// recorded: it changes no work.
type writer struct {
	conn     *pgx.Conn // of the recorded database: knows the parameters' types
	tag      int       // of this script, among all that run on one database
	since    time.Time // when the recorded booking began: ids of later are its own
	known    map[[16]byte]value
	fresh    map[[16]byte]value
	node     string // the g-th node, in SQL
	shift    string // an interval, in SQL
	typesOf  map[string][]string
	rendered []statement
}

// nodePrefix is what the ids of nodes begin with: see nodeID.
const nodePrefix = "\x00\x00\x00\x00\x00\x00\x70\x00\x80\x00"

// value is an SQL expression in pgbench's variables: of a uuid, and of the 26 characters that people see of it after the prefix.
type value struct{ uuid, text string }

// ordinal is the value of the k-th thing that the g-th run of a script has for itself; k = 0: its quote.
func ordinal(tag, k int) value {
	return value{
		uuid: fmt.Sprintf("('%08x-%04x-7000-8000-' || lpad(to_hex(:g::bigint), 12, '0'))::uuid", k, tag),
		text: fmt.Sprintf("'%02d%03d' || lpad(:g::text, 21, '0')", tag, k),
	}
}

// suffix is what people see of an id behind the prefix.
func suffix(uuid [16]byte) string {
	var id ids.Lease
	if err := id.Scan(uuid); err != nil {
		return ""
	}
	_, text, _ := strings.Cut(id.String(), "_")
	return text
}

// write renders all statements.
func (w *writer) write(ctx context.Context, recorded []statement) error {
	w.fresh, w.typesOf = map[[16]byte]value{}, map[string][]string{}
	for _, s := range recorded { // first all ids, since texts name them too
		types, err := w.types(ctx, s)
		if err != nil {
			return err
		}
		for i, arg := range s.args {
			if uuid, ok := uuidOf(arg); ok && types[i] == "uuid" {
				w.meet(uuid)
			}
		}
	}
	for _, s := range recorded {
		text, err := w.render(s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.sql, err)
		}
		w.rendered = append(w.rendered, statement{sql: text, batch: s.batch})
	}
	return nil
}

// types asks the server what the statement's parameters are.
func (w *writer) types(ctx context.Context, s statement) ([]string, error) {
	if known, ok := w.typesOf[s.sql]; ok || len(s.args) == 0 {
		return known, nil
	}
	prepared, err := w.conn.Prepare(ctx, "", s.sql)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", s.sql, err)
	}
	if len(prepared.ParamOIDs) != len(s.args) {
		return nil, fmt.Errorf("%s has %d parameters, and was sent %d: %v", s.sql, len(prepared.ParamOIDs), len(s.args), s.args)
	}
	types := make([]string, len(prepared.ParamOIDs))
	for i, oid := range prepared.ParamOIDs {
		if err := w.conn.QueryRow(ctx, "SELECT format_type($1, NULL)", oid).Scan(&types[i]); err != nil {
			return nil, err
		}
	}
	w.typesOf[s.sql] = types
	return types, nil
}

// meet gives an id of the booking's own a value.
func (w *writer) meet(uuid [16]byte) {
	made := int64(uuid[0])<<40 | int64(uuid[1])<<32 | int64(uuid[2])<<24 | int64(uuid[3])<<16 | int64(uuid[4])<<8 | int64(uuid[5])
	_, known := w.known[uuid]
	_, met := w.fresh[uuid]
	if !known && !met && uuid[6]>>4 == 7 && made >= w.since.UnixMilli() {
		w.fresh[uuid] = ordinal(w.tag, len(w.fresh)+1)
	}
}

var placeholder = regexp.MustCompile(`\$(\d+)`) //nolint:gochecknoglobals // a constant

func (w *writer) render(s statement) (string, error) {
	var failed error
	text := placeholder.ReplaceAllStringFunc(s.sql, func(dollar string) string {
		n, err := strconv.Atoi(dollar[1:])
		if err != nil || n < 1 || n > len(s.args) {
			failed = fmt.Errorf("parameter %s is missing", dollar)
			return dollar
		}
		expression, err := w.expression(s.args[n-1], w.typesOf[s.sql][n-1])
		if err != nil {
			failed = err
		}
		return expression
	})
	return strings.TrimSpace(text), failed
}

// expression is the SQL for an argument of that type.
func (w *writer) expression(arg any, typ string) (string, error) {
	if uuid, ok := uuidOf(arg); ok && typ == "uuid" {
		if v, ok := w.value(uuid); ok {
			return v.uuid, nil
		}
	}
	if raw, ok := arg.([]byte); ok && typ != "bytea" && raw != nil {
		arg = string(raw)
	}
	if all, ok := arg.([]string); ok && typ == "text[]" {
		return w.list(all), nil
	}
	text, null, err := textOf(arg)
	if err != nil {
		return "", err
	}
	switch {
	case null:
		return "NULL::" + typ, nil
	case typ == "timestamp with time zone":
		return w.instant(text), nil
	case typ == "tstzrange":
		from, to, _ := strings.Cut(strings.Trim(text, `[)`), ",")
		return fmt.Sprintf("tstzrange(%s, %s)", w.instant(strings.Trim(from, `"`)), w.instant(strings.Trim(to, `"`))), nil
	case typ == "text":
		return "(" + w.named(text) + ")::text", nil
	default:
		return quoted(text) + "::" + typ, nil
	}
}

// list renders texts, some of which may be uuids.
func (w *writer) list(all []string) string {
	parts := make([]string, len(all))
	for i, text := range all {
		parts[i] = w.named(text)
		if uuid, ok := uuidOf(text); ok {
			if v, ok := w.value(uuid); ok {
				parts[i] = "(" + v.uuid + ")::text"
			}
		}
	}
	return "ARRAY[" + strings.Join(parts, ", ") + "]::text[]"
}

func (w *writer) value(uuid [16]byte) (value, bool) {
	if string(uuid[:10]) == nodePrefix {
		return value{uuid: w.node}, true
	}
	if v, ok := w.known[uuid]; ok {
		return v, true
	}
	v, ok := w.fresh[uuid]
	return v, ok
}

// instant moves times in the lease's future.
func (w *writer) instant(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		at, err = time.Parse("2006-01-02 15:04:05.999999-07", text)
	}
	if err != nil || at.Before(w.since.Add(12*time.Hour)) {
		return quoted(text) + "::timestamptz"
	}
	return fmt.Sprintf("(%s::timestamptz + %s)", quoted(text), w.shift)
}

// named replaces the ids in a text.
func (w *writer) named(text string) string {
	parts := []string{strings.Trim(quoted(text), "()")}
	for _, all := range []map[[16]byte]value{w.known, w.fresh} {
		for uuid, v := range all {
			parts = replaced(parts, suffix(uuid), v.text)
			parts = replaced(parts, pgtype.UUID{Bytes: uuid, Valid: true}.String(), "("+v.uuid+")::text")
		}
	}
	return strings.Join(parts, " || ")
}

// replaced puts an expression in the place of a text within literals.
func replaced(parts []string, text, expression string) []string {
	for i, part := range parts {
		if before, after, found := strings.Cut(part, text); found && strings.HasPrefix(part, "'") {
			return slices.Replace(parts, i, i+1, before+"'", expression, "'"+after)
		}
	}
	return parts
}

// quoted is a literal in which pgbench finds no variables.
func quoted(text string) string {
	escaped := strings.ReplaceAll(text, "'", "''")
	if colon := regexp.MustCompile(`:([A-Za-z_])`); colon.MatchString(escaped) {
		return "('" + colon.ReplaceAllString(escaped, ":' || '$1") + "')"
	}
	return "'" + escaped + "'"
}

// uuidOf takes an argument for a uuid, in whichever form it was given.
func uuidOf(arg any) ([16]byte, bool) {
	if raw, ok := arg.([16]byte); ok {
		return raw, true
	}
	text, null, err := textOf(arg)
	var uuid pgtype.UUID
	if err != nil || null || len(text) != 36 || uuid.Scan(text) != nil {
		return [16]byte{}, false
	}
	return uuid.Bytes, true
}

// textOf is PostgreSQL's text form of an argument.
func textOf(arg any) (string, bool, error) {
	if pointer := reflect.ValueOf(arg); pointer.Kind() == reflect.Pointer && pointer.IsNil() {
		return "", true, nil
	}
	if valuer, ok := arg.(driver.Valuer); ok {
		v, err := valuer.Value()
		if err != nil {
			return "", false, fmt.Errorf("value of %T: %w", arg, err)
		}
		arg = v
	}
	switch v := arg.(type) {
	case nil:
		return "", true, nil
	case string:
		return v, false, nil
	case []byte:
		if v == nil {
			return "", true, nil
		}
		return `\x` + hex.EncodeToString(v), false, nil
	case [16]byte:
		return pgtype.UUID{Bytes: v, Valid: true}.String(), false, nil
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), false, nil
	case *time.Time:
		if v == nil {
			return "", true, nil
		}
		return v.UTC().Format(time.RFC3339Nano), false, nil
	case bool, int, int32, int64, float64:
		return fmt.Sprint(v), false, nil
	default:
		return "", false, fmt.Errorf("a parameter of type %T cannot be replayed", arg)
	}
}

// knownOf lists the customer's ids in one order, to name columns and variables by.
func knownOf(c customer) [][16]byte {
	return [][16]byte{c.org.UUID(), c.project.UUID(), c.user.UUID(), c.sshKey.UUID(), c.keyID.UUID(), c.account[0], c.account[1]}
}

// customerValues are the running client's own ids, as variables that the script reads once.
func customerValues(c customer) map[[16]byte]value {
	known := map[[16]byte]value{}
	for i, uuid := range knownOf(c) {
		known[uuid] = value{uuid: fmt.Sprintf(":e%d::uuid", i), text: fmt.Sprintf(":t%d::text", i)}
	}
	return known
}

// with adds values.
func with(known map[[16]byte]value, more map[[16]byte]value) map[[16]byte]value {
	both := maps.Clone(known)
	maps.Copy(both, more)
	return both
}
