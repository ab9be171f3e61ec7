package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
)

// Witness is what the database says of all chains, read as the platform.
type Witness interface {
	// ChainNames lists the organizations, with the zero id for the platform's own chain.
	ChainNames(ctx context.Context) ([]ids.Org, error)
	ChainedEvents(ctx context.Context, org ids.Org, since, until time.Time, after int64, limit int) ([]Event, error)
	Heads(ctx context.Context, orgs []ids.Org) (map[ids.Org]Link, error)
	// Loose lists events from before the instant that are in no chain.
	Loose(ctx context.Context, before time.Time, limit int) ([]ids.Audit, error)
}

// Breach is a place where a chain is not whole.
type Breach struct {
	Chain ids.Org // zero: the platform's own
	What  string
}

// Verifier reads all chains again.
type Verifier struct {
	Tx      Transactor
	Witness Witness
	Clock   clock.Clock
}

const (
	// looseAfter is how long an event may be in no chain: a chainer that is not there for so long is worth a word as well.
	looseAfter = 10 * time.Minute
	mostLoose  = 100
	readAtOnce = 2_000
	mostOfOne  = 10 // of one chain: after a breach everything behind it looks odd
)

// Verify returns every breach that it finds. An end that somebody has cut off, events and links, is not seen from within: whoever keeps an
// export sees it by that.
func (v Verifier) Verify(ctx context.Context) ([]Breach, error) {
	var breaches []Breach
	var chains []ids.Org
	err := v.Tx.WithinTx(ctx, func(ctx context.Context) error {
		loose, err := v.Witness.Loose(ctx, v.Clock.Now().Add(-looseAfter), mostLoose)
		for _, id := range loose {
			breaches = append(breaches, Breach{What: "event " + id.String() + " is in no chain"})
		}
		if err != nil {
			return err
		}
		chains, err = v.Witness.ChainNames(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify audit log: %w", err)
	}
	for _, chain := range chains {
		found, err := v.chain(ctx, chain)
		if err != nil {
			return nil, fmt.Errorf("verify audit log: %w", err)
		}
		breaches = append(breaches, found...)
	}
	return breaches, nil
}

// chain reads one chain, a part at a time.
func (v Verifier) chain(ctx context.Context, org ids.Org) ([]Breach, error) {
	var (
		breaches []Breach
		last     Link
		head     Link
	)
	err := v.Tx.WithinTx(ctx, func(ctx context.Context) error {
		heads, err := v.Witness.Heads(ctx, []ids.Org{org}) // before its events: it grows
		head = heads[org]
		return err
	})
	for err == nil {
		var events []Event
		err = v.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
			events, err = v.Witness.ChainedEvents(ctx, org, time.Time{}, time.Time{}, last.Seq, readAtOnce)
			return err
		})
		for _, e := range events {
			if wrong := e.Check(last); wrong != nil && len(breaches) < mostOfOne {
				breaches = append(breaches, Breach{Chain: org, What: wrong.Error()})
			}
			last = e.Link
		}
		if len(events) < readAtOnce {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if last.Seq < head.Seq {
		breaches = append(breaches, Breach{Chain: org, What: fmt.Sprintf("numbers %d to %d are gone", last.Seq+1, head.Seq)})
	}
	return breaches, nil
}
