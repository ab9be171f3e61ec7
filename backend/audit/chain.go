package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// line is an event as it is hashed and exported. Its members and their order are part of the log's form: a new one goes before hash and is
// left out when it is empty, so that old lines stay what they were.
type line struct {
	Seq          int64           `json:"seq"`
	Previous     string          `json:"previous"`
	ID           string          `json:"id"`
	Organization string          `json:"organization_id"`
	At           time.Time       `json:"at"`
	Actor        string          `json:"actor"`
	Action       string          `json:"action"`
	Target       string          `json:"target"`
	Before       json.RawMessage `json:"before,omitempty"`
	After        json.RawMessage `json:"after,omitempty"`
	RequestID    string          `json:"request_id,omitempty"`
	Source       string          `json:"source,omitempty"`
	Hash         string          `json:"hash,omitempty"`
}

// Line is the event as one line of JSON, without its end. What comes before `,"hash"`, and a closing brace, is what the hash is of.
func (e Event) Line() ([]byte, error) { return e.line(e.Link) }

func (e Event) line(link Link) ([]byte, error) {
	l := line{
		Seq: link.Seq, Previous: link.Previous, Hash: link.Hash, ID: e.ID.String(), Organization: e.Org.String(), At: e.At.UTC(), Actor: e.Actor,
		Action: e.Action, Target: e.Target, RequestID: e.RequestID, Source: e.Source,
	}
	var err error
	if l.Before, err = canonical(e.Before); err != nil {
		return nil, err
	}
	if l.After, err = canonical(e.After); err != nil {
		return nil, err
	}
	return encodeLine(l)
}

func encodeLine(l line) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(l); err != nil {
		return nil, fmt.Errorf("encode audit event: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// canonical is JSON without blanks, with sorted members and with numbers as they were written: the database keeps neither blanks nor order.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("read audit event: %w", err)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("write audit event: %w", err)
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

// after is the event's link behind another one; the zero link for the first of a chain.
func (e Event) after(previous Link) (Link, error) {
	link := Link{Seq: previous.Seq + 1, Previous: previous.Hash}
	hashed, err := e.line(link)
	if err != nil {
		return Link{}, err
	}
	link.Hash = hashOf(hashed)
	return link, nil
}

func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Check says what is wrong with an event that stands behind another one in a chain; nil: nothing.
func (e Event) Check(previous Link) error {
	want, err := e.after(previous)
	switch {
	case err != nil:
		return err
	case e.Link.Seq != want.Seq:
		return fmt.Errorf("number %d comes after number %d", e.Link.Seq, previous.Seq)
	case e.Link.Previous != want.Previous:
		return fmt.Errorf("number %d does not continue number %d", e.Link.Seq, previous.Seq)
	case e.Link.Hash != want.Hash:
		return fmt.Errorf("number %d is not what was written", e.Link.Seq)
	default:
		return nil
	}
}

// CheckLine is Check of an exported line; it returns the line's link. The first line of an export may stand anywhere in its chain: give a nil
// previous then.
func CheckLine(raw []byte, previous *Link) (Link, error) {
	raw = bytes.TrimSpace(raw)
	end := bytes.LastIndex(raw, []byte(`,"hash":"`))
	if end < 0 {
		return Link{}, errors.New("a line has no hash")
	}
	var l line
	if err := json.Unmarshal(raw, &l); err != nil {
		return Link{}, errors.New("a line is no audit event") //nolint:nilerr // what it is instead does not matter
	}
	link := Link{Seq: l.Seq, Previous: l.Previous, Hash: l.Hash}
	hashed := append(bytes.Clone(raw[:end]), '}')
	switch {
	case string(raw[end:]) != `,"hash":"`+link.Hash+`"}`:
		return link, fmt.Errorf("number %d has something behind its hash", link.Seq)
	case hashOf(hashed) != link.Hash:
		return link, fmt.Errorf("number %d is not what was written", link.Seq)
	case previous == nil:
		return link, nil
	case link.Seq != previous.Seq+1:
		return link, fmt.Errorf("number %d comes after number %d", link.Seq, previous.Seq)
	case link.Previous != previous.Hash:
		return link, fmt.Errorf("number %d does not continue number %d", link.Seq, previous.Seq)
	default:
		return link, nil
	}
}

// Chains is the chainer's store, used as the platform.
type Chains interface {
	// Unchained returns up to limit events that are in no chain, in the order in which they were written. It answers none while another
	// chainer is at it, until the transaction ends.
	Unchained(ctx context.Context, limit int) ([]Event, error)
	// Heads are the last links of chains; none for one that has not begun.
	Heads(ctx context.Context, orgs []ids.Org) (map[ids.Org]Link, error)
	// AddLinks puts events into their chains.
	AddLinks(ctx context.Context, events []Event) error
}

// Transactor runs fn in one transaction, which the context carries to the stores.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Chainer puts events into chains, in the order of their writing. Any number may run at once: one works.
type Chainer struct {
	Tx     Transactor
	Chains Chains
}

const chainAtOnce = 500

// Chain puts into chains what is in none.
func (c Chainer) Chain(ctx context.Context) error {
	for {
		n := 0
		err := c.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
			n, err = c.round(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("chain audit events: %w", err)
		}
		if n < chainAtOnce {
			return nil
		}
	}
}

func (c Chainer) round(ctx context.Context) (int, error) {
	events, err := c.Chains.Unchained(ctx, chainAtOnce)
	if err != nil || len(events) == 0 {
		return 0, err
	}
	known := map[ids.Org]bool{}
	var orgs []ids.Org
	for _, e := range events {
		if !known[e.Org] {
			known[e.Org] = true
			orgs = append(orgs, e.Org)
		}
	}
	heads, err := c.Chains.Heads(ctx, orgs)
	if err != nil {
		return 0, err
	}
	for i, e := range events {
		if events[i].Link, err = e.after(heads[e.Org]); err != nil {
			return 0, err
		}
		heads[e.Org] = events[i].Link
	}
	return len(events), c.Chains.AddLinks(ctx, events)
}
