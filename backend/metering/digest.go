package metering

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// inputs is what a rating depends on, in the order and form that its digest is over.
type inputs struct {
	Version     string            `json:"version"`
	Lease       ids.Lease         `json:"lease"`
	Currency    money.Currency    `json:"currency"`
	Product     string            `json:"product"`
	Instances   int               `json:"instances"`
	Start       time.Time         `json:"start"`
	End         time.Time         `json:"end"`
	Outcome     lease.Outcome     `json:"outcome"`
	Segments    []segmentInput    `json:"segments"`
	Allocations []allocationInput `json:"allocations"`
	Events      []eventInput      `json:"events"`
	Charged     []chargedInput    `json:"charged"`
	Until       time.Time         `json:"until"`
	Final       bool              `json:"final"`
}

// chargedInput is what of the prior lines a rating depends on.
type chargedInput struct {
	Segment     int       `json:"segment"`
	Quantity    *big.Int  `json:"quantity_unit_millis"`
	UsedMinor   int64     `json:"used_minor"`
	NetMinor    int64     `json:"net_minor"`
	TaxMinor    int64     `json:"tax_minor"`
	Usages      int       `json:"usages"`
	Corrections int       `json:"corrections"`
	Fees        int       `json:"fees"`
	Until       time.Time `json:"until"`
}

type segmentInput struct {
	Seq        int         `json:"seq"`
	Start      time.Time   `json:"start"`
	End        time.Time   `json:"end"`
	Price      ids.Price   `json:"price"`
	Rate       money.Rate  `json:"rate"`
	TaxRateBPS int         `json:"tax_rate_bps"`
	Terms      lease.Terms `json:"terms"`
}

type allocationInput struct {
	ID         ids.Allocation `json:"id"`
	Ordinal    int            `json:"ordinal"`
	ReplacedBy ids.Allocation `json:"replaced_by"`
}

type eventInput struct {
	Seq  int64           `json:"seq"`
	Type lease.EventType `json:"type"`
	At   time.Time       `json:"at"`
	Data map[string]any  `json:"data,omitempty"`
}

func (r *Run) sign(f Facts, prior []Line, final bool) error {
	in := inputs{
		Version: Version, Lease: f.Lease.ID, Currency: f.Lease.Currency, Product: f.Product, Instances: f.Lease.Instances,
		Start: f.Lease.Start.UTC(), End: f.Lease.EffectiveEnd().UTC(), Outcome: f.Lease.Outcome, Until: r.Until, Final: final,
	}
	for _, s := range f.Segments {
		in.Segments = append(in.Segments, segmentInput{
			Seq: s.Seq, Start: s.Start.UTC(), End: s.End.UTC(), Price: s.PriceVersion, Rate: s.Rate, TaxRateBPS: s.TaxRateBPS, Terms: s.Terms,
		})
		m := newMeter(f, s, prior)
		in.Charged = append(in.Charged, chargedInput{
			Segment: s.Seq, Quantity: m.quantity, UsedMinor: m.used, NetMinor: m.net, TaxMinor: m.tax,
			Usages: m.usages, Corrections: m.fixes, Fees: m.feeCount, Until: m.at,
		})
	}
	for _, a := range f.Allocations {
		in.Allocations = append(in.Allocations, allocationInput{ID: a.ID, Ordinal: a.Ordinal, ReplacedBy: a.ReplacedBy})
	}
	for _, e := range f.Events {
		if e.Type != lease.EventCharged { // what this very function led to is not an input to it
			in.Events = append(in.Events, eventInput{Seq: e.Seq, Type: e.Type, At: e.At.UTC(), Data: e.Data})
		}
	}
	var err error
	if r.InputsDigest, err = Digest(in); err != nil {
		return err
	}
	r.LinesDigest, err = Digest(r.Lines)
	return err
}

// Digest is SHA-256 over v's JSON, in hexadecimal. Go's encoder writes fields in the struct's order and keys sorted, so that equal
// values have equal digests on every machine.
func Digest(v any) (string, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
