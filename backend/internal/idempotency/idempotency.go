// Package idempotency makes a change happen once however often it is sent. A client gives each intended change a key; the first
// request under a key does the work and its answer is kept, in the same transaction as the effect; later ones get that answer.
//
// An effect that leaves the database (a payment) cannot share the transaction: it is claimed first, done, and its answer kept after.
// Whoever does it must be idempotent by EffectKey, since a crash in between leaves a claim that the next request takes over.
package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Request is what a key stands for.
type Request struct {
	Org    ids.Org
	Actor  string
	Key    string
	Method string
	Path   string // with the query
	Body   []byte
}

// EffectKey names the intended change among everybody's, for effects outside.
func (r Request) EffectKey() string { return r.Org.String() + "/" + r.Actor + "/" + r.Key }

func (r Request) hash() []byte {
	sum := sha256.Sum256(r.Body)
	return sum[:]
}

// Answer is what the first request was told, without secrets.
type Answer struct {
	Status int // 0: claimed, not answered yet
	Header map[string]string
	Body   []byte
}

// Record is a key with its request and answer.
type Record struct {
	Org       ids.Org
	Actor     string
	Key       string
	Method    string
	Path      string
	BodyHash  []byte
	Answer    Answer
	CreatedAt time.Time
}

// Store keeps records in the transaction that ctx carries.
type Store interface {
	// TryLock locks the key until the transaction ends; false: another transaction has it.
	TryLock(ctx context.Context, effectKey string) (bool, error)
	// Find answers false when there is no record.
	Find(ctx context.Context, org ids.Org, actor, key string) (Record, bool, error)
	// Save writes the record, in place of an earlier one.
	Save(ctx context.Context, record Record) error
}

// Keeper decides what a request with a key is: the first, a repetition, or a mistake.
type Keeper struct {
	store Store
	clock clock.Clock
}

// New returns a keeper of records in store.
func New(store Store, clock clock.Clock) *Keeper { return &Keeper{store: store, clock: clock} }

// claimFor is how long an effect outside may take before another request under its key takes over.
const claimFor = 2 * time.Minute

// Begin looks the request up, and keeps its key locked until the transaction in ctx ends. It returns the stored answer and true for a
// repetition; Invalid when the key was used for something else; Conflict when the first request is still running.
func (k *Keeper) Begin(ctx context.Context, r Request) (Answer, bool, error) {
	free, err := k.store.TryLock(ctx, r.EffectKey())
	if err != nil {
		return Answer{}, false, fmt.Errorf("lock idempotency key: %w", err)
	}
	if !free {
		return Answer{}, false, errRunning()
	}
	record, found, err := k.store.Find(ctx, r.Org, r.Actor, r.Key)
	if err != nil {
		return Answer{}, false, fmt.Errorf("find idempotency key: %w", err)
	}
	switch {
	case !found:
		return Answer{}, false, nil
	case record.Method != r.Method || record.Path != r.Path || !bytes.Equal(record.BodyHash, r.hash()):
		return Answer{}, false, fault.New(fault.Invalid, "idempotency-key-reused", "this Idempotency-Key was used for another request")
	case record.Answer.Status != 0:
		return record.Answer, true, nil
	case k.clock.Now().Before(record.CreatedAt.Add(claimFor)):
		return Answer{}, false, errRunning()
	default:
		return Answer{}, false, nil
	}
}

// Claim notes that the effect is about to happen outside the transaction in ctx.
func (k *Keeper) Claim(ctx context.Context, r Request) error {
	return k.save(ctx, r, Answer{}, k.clock.Now())
}

// Release gives a claim up whose effect failed: the next request under the key takes over at once.
func (k *Keeper) Release(ctx context.Context, r Request) error {
	return k.save(ctx, r, Answer{}, k.clock.Now().Add(-claimFor))
}

// Finish keeps the answer, which must hold no secret.
func (k *Keeper) Finish(ctx context.Context, r Request, answer Answer) error {
	return k.save(ctx, r, answer, k.clock.Now())
}

func (k *Keeper) save(ctx context.Context, r Request, answer Answer, at time.Time) error {
	err := k.store.Save(ctx, Record{
		Org: r.Org, Actor: r.Actor, Key: r.Key, Method: r.Method, Path: r.Path, BodyHash: r.hash(), Answer: answer, CreatedAt: at,
	})
	if err != nil {
		return fmt.Errorf("keep idempotency key: %w", err)
	}
	return nil
}

func errRunning() error {
	return fault.New(fault.Conflict, "idempotency-key-in-use", "the first request with this Idempotency-Key is still running; repeat in a moment")
}
