package power_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/power"
)

// system is what runs on the machine: the service OS's agent, or the tenant's own.
type system struct {
	*world
	mu    sync.Mutex
	phone string // where the seed says to phone home
	did   []protocol.OperationKind
}

func (s *system) boot(t *testing.T, network bool) {
	t.Helper()
	if !network {
		s.mu.Lock()
		address := s.phone
		s.mu.Unlock()
		if status := s.world.phone(t, address); status != http.StatusOK {
			t.Errorf("its call was answered %d", status)
		}
		return
	}
	token, _ := s.script(t, "52-54-00-00-00-01")
	key := newKey(t)
	reply, err := s.enroll(t, token, key)
	if err != nil {
		return // switched again meanwhile
	}
	for s.serve(t, reply.AgentID, key) {
	}
}

// serve does what the agent is asked for, until its identity ends.
func (s *system) serve(t *testing.T, id string, key ed25519.PrivateKey) bool {
	t.Helper()
	call := func() (fleet.Caller, error) {
		now := time.Now()
		claims := jwt.MapClaims{
			"iss": id, "sub": id, "iat": now.Unix(), "exp": now.Add(protocol.MaxTokenAge).Unix(), "jti": rand.Text(),
			protocol.ClaimMethod: "POST", protocol.ClaimPath: "/x", protocol.ClaimBody: protocol.BodyHash(nil),
		}
		text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(key)
		if err != nil {
			return fleet.Caller{}, err
		}
		return s.fleet.Authenticate(context.WithoutCancel(t.Context()), text, "POST", "/x")
	}
	caller, err := call()
	if err != nil {
		return false
	}
	work, err := s.fleet.Poll(context.WithoutCancel(t.Context()), caller, 20*time.Millisecond)
	for _, op := range work {
		id, _ := ids.Read[ids.Operation](op.ID)
		if caller, err = call(); err == nil {
			err = s.fleet.Complete(context.WithoutCancel(t.Context()), caller, id, s.answer(op, caller, key))
		}
	}
	return err == nil || errors.Is(err, context.DeadlineExceeded)
}

func (s *system) answer(op protocol.Operation, caller fleet.Caller, key ed25519.PrivateKey) protocol.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, op.Kind)
	result := protocol.Result{State: protocol.Succeeded}
	switch op.Kind { //nolint:exhaustive // the rest is unexpected
	case protocol.Prepare:
		var spec protocol.PrepareSpec
		if json.Unmarshal(op.Spec, &spec) != nil || spec.Source == nil || spec.Source.SHA256 != "5a" {
			return protocol.Result{State: protocol.Failed, Fault: &protocol.Fault{Code: "no-image"}}
		}
		result.Evidence = protocol.Raw(`{"checks": [], "image_digest": "sha256:5a"}`)
	case protocol.Grant:
		var spec protocol.GrantSpec
		_ = json.Unmarshal(op.Spec, &spec)
		s.phone = spec.Seed.PhoneHome
		result.Evidence = protocol.Raw(`{"user": "lease", "host_keys": []}`)
	case protocol.Wipe:
		var spec protocol.WipeSpec
		_ = json.Unmarshal(op.Spec, &spec)
		payload, _ := json.Marshal(protocol.WipeEvidence{
			LeaseID: spec.LeaseID, NodeID: caller.Node.String(), Nonce: spec.Nonce, Slots: op.Slots,
			Devices: []protocol.DeviceWipe{{Kind: "nvme", Status: protocol.Wiped, ReadBackSamples: 1}},
		})
		result.Evidence = payload
		result.Signed = &protocol.Envelope{PayloadType: protocol.PayloadWipeEvidence, Payload: payload, Signatures: []protocol.Signature{
			{KeyID: caller.ID.String(), Sig: ed25519.Sign(key, protocol.PAE(protocol.PayloadWipeEvidence, payload))},
		}}
	default:
		return protocol.Result{State: protocol.Failed, Fault: &protocol.Fault{Code: "unexpected"}}
	}
	return result
}

// crew lets delivery ask agents.
type crew struct{ fleet *fleet.Service }

func (c crew) Issue(ctx context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	work := make([]fleet.Work, len(orders))
	for i, o := range orders {
		work[i] = fleet.Work{
			Node: o.Node, Allocation: o.Allocation, Kind: o.Kind, Epoch: o.Epoch, Slots: protocol.Slots(o.Slots), Spec: o.Spec,
			PickUpWithin: limits.PickUpWithin, DoneWithin: limits.DoneWithin,
		}
	}
	_, err := c.fleet.Issue(ctx, fleet.Step{Lease: step.Lease, Kind: step.Kind, Attempt: step.Attempt, Node: step.Node}, work)
	return err
}

type oneImage struct{}

func (oneImage) Source(context.Context, string) (*protocol.Image, error) {
	return &protocol.Image{URL: "http://images.test/x", Format: "raw", SHA256: "5a", SizeBytes: 1}, nil
}

type noKey struct{}

func (noKey) Sign(_ context.Context, payloadType string, payload []byte) (protocol.Envelope, error) {
	return protocol.Envelope{PayloadType: payloadType, Payload: payload}, nil
}

type free struct{}

func (free) Accrue(context.Context, ids.Lease, time.Time) error { return nil }
func (free) Settle(context.Context, ids.Lease) (ids.Invoice, error) {
	return ids.Make[ids.Invoice](), nil
}

// leased is a world with delivery, and a lease that holds the machine and is due.
func leased(t *testing.T) (*system, *delivery.Service, ids.Lease, ids.Allocation) {
	t.Helper()
	s := &system{world: newWorld(t)}
	s.box.does(func(network bool) { s.boot(t, network) })
	s.run(t, "w1")
	require.Nil(t, s.await(t, s.first(t)))
	s.Exec(t, "UPDATE node SET state = 'available', mode = 'bare_metal', slots = 64 WHERE id = $1", s.node)
	kind := s.InstanceType(t, "metal.8x", "mi250x-128gb.8", "bare_metal", 8)
	id := s.Lease(t, s.Customer(t, "Acme"), kind, time.Now().Add(-time.Second), time.Now().Add(time.Hour))
	s.Exec(t, "UPDATE lease SET fabric_id = NULL")
	a := ids.Make[ids.Allocation]()
	s.Exec(t, `INSERT INTO allocation (id, node_id, slots, occupied, purpose, lease_id, state, ordinal, created_at)
		VALUES ($1, $2, '[0,64)', tstzrange(now() - interval '1 second', now() + interval '1 hour'), 'lease', $3, 'held', 0, now())`, a, s.node, id)
	service := delivery.New(delivery.Deps{
		DB: s.db, Leases: postgres.NewLeases(s.db), Allocations: postgres.NewAllocations(s.db), Work: postgres.NewLeaseWork(s.db), Agents: crew{s.fleet},
		Billing: free{}, Outbox: postgres.NewOutbox(s.db), Signer: noKey{}, Clock: clock.System{}, Machines: s.power, Images: oneImage{},
	})
	return s, service, id, a
}

type look func(ctx context.Context, id ids.Lease) (delivery.Progress, error)

// until looks until the step is done, as the workflow does.
func until(t *testing.T, id ids.Lease, step look) {
	t.Helper()
	require.Eventually(t, func() bool {
		progress, err := step(t.Context(), id)
		require.NoError(t, err)
		require.Nil(t, progress.Ending)
		return progress.Done
	}, 30*time.Second, 20*time.Millisecond)
}

func (s *system) deliver(t *testing.T, service *delivery.Service, id ids.Lease) {
	t.Helper()
	for _, step := range []look{service.HandOver, service.Prepare, service.Isolate, service.Grant, service.Activate} {
		until(t, id, step)
	}
}

func (s *system) cell(t *testing.T, sql string, args ...any) (text string) {
	t.Helper()
	require.NoError(t, s.Pool.QueryRow(t.Context(), sql, args...).Scan(&text))
	return text
}

func TestAMachineIsLeasedBootedAndTakenBackWiped(t *testing.T) {
	t.Parallel()
	s, service, id, allocation := leased(t)
	s.deliver(t, service, id)
	require.Equal(t, power.StageTenant, s.stage(t))
	require.Equal(t, "active", s.cell(t, "SELECT state FROM lease WHERE id = $1", id))
	access := s.cell(t, "SELECT access::text FROM allocation WHERE id = $1", allocation)
	require.Contains(t, access, hostKey, "the host key is the one that the machine phoned home with")
	require.Contains(t, access, `"lease"`)

	// While it is its tenant's, no heartbeat is expected, and a moved end asks nobody.
	s.Exec(t, "INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, now() - interval '1 hour') ON CONFLICT (node_id) DO UPDATE SET seen_at = EXCLUDED.seen_at", s.node)
	require.NoError(t, service.Watch(t.Context()))
	require.Equal(t, "0", s.cell(t, "SELECT count(*)::text FROM lease_event WHERE type LIKE '%outage%'"))
	s.Exec(t, "UPDATE lease SET end_at = end_at + interval '1 hour' WHERE id = $1", id)
	progress, err := service.Grant(t.Context(), id)
	require.NoError(t, err)
	require.True(t, progress.Done)

	require.NoError(t, service.Release(t.Context(), id, delivery.Ending{Outcome: lease.Terminated, Reason: "enough"}))
	until(t, id, service.Revoke)
	require.False(t, s.box.On(), "its tenant is shut out by having no power")
	require.Equal(t, power.StageOff, s.stage(t))
	until(t, id, service.Leave)
	until(t, id, service.Wipe)
	require.NoError(t, service.Settle(t.Context(), id))
	require.Equal(t, power.StageService, s.stage(t), "it waits for the next lease in the service OS")
	require.Equal(t, "released", s.cell(t, "SELECT state FROM allocation WHERE id = $1", allocation))
	require.Equal(t, "wiped", s.cell(t, "SELECT result FROM wipe_certificate WHERE allocation_id = $1", allocation))
	require.Equal(t, []protocol.OperationKind{protocol.Prepare, protocol.Grant, protocol.Wipe}, s.did, "the agent is asked for nothing else")
	require.Equal(t, 3, s.box.booted())
}

func TestALeaseThatEndsBeforeTheImageWasBootedIsCleanedByTheSameAgent(t *testing.T) {
	t.Parallel()
	s, service, id, allocation := leased(t)
	for _, step := range []look{service.HandOver, service.Prepare} {
		until(t, id, step)
	}
	require.NoError(t, service.Release(t.Context(), id, delivery.Ending{Outcome: lease.CancelledOutcome, Reason: "changed their mind"}))
	s.mu.Lock()
	before := len(s.did)
	s.mu.Unlock()
	require.Equal(t, 1, before)
	progress, err := service.Revoke(t.Context(), id)
	require.NoError(t, err)
	require.False(t, progress.Done, "its agent is asked to show that nobody can log in")
	require.Equal(t, power.StageService, s.stage(t))
	require.Equal(t, "cleaning", s.cell(t, "SELECT state FROM allocation WHERE id = $1", allocation))
}

func TestAMachineInUnknownHandsIsRecalledBeforeItIsPrepared(t *testing.T) {
	t.Parallel()
	s, service, id, _ := leased(t)
	require.NoError(t, s.box.TurnOff(t.Context()))
	s.Exec(t, "UPDATE machine SET stage = 'unknown'")
	s.deliver(t, service, id)
	require.Equal(t, power.StageTenant, s.stage(t))
	require.Equal(t, 3, s.box.booted(), "registered, recalled, given to the tenant")
}
