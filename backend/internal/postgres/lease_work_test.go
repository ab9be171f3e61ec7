package postgres_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/tenant"
)

func TestAnInstanceComesWithWhatItsNodeMustBeTold(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	work, whole, part := postgres.NewLeaseWork(w.db), w.allocation(), w.allocation()
	for bay := range 8 {
		w.Exec(t, `INSERT INTO gpu (id, node_id, bay, uuid, vendor, model, memory_bytes, pci_address) VALUES ($1, $2, $3::int, 'GPU-' || $3::int, 'nvidia', 'H100', 1, $3::int::text)`,
			ids.Make[ids.GPU](), w.node, bay)
	}
	w.Exec(t, `INSERT INTO hca_port (id, node_id, fabric_id, bay, rail, device, port, node_guid, guid) VALUES
		($1, $3, $4, NULL, 9, 'mlx5_9', 1, '0x00000000000000f0', '0x00000000000000f1'), ($2, $3, $4, 5, 5, 'mlx5_5', 1, '0x00000000000000e0', '0x00000000000000e1')`,
		ids.Make[ids.HCAPort](), ids.Make[ids.HCAPort](), w.node, w.Fabric)
	part.Slots, part.Occupied.Start, part.Occupied.End = lease.Slots{From: 32, To: 48}, w.start.Add(2*time.Hour), w.start.Add(3*time.Hour)
	part.Ordinal = 1
	w.Exec(t, "UPDATE fabric SET managed_low = 256, managed_high = 511")
	w.Exec(t, "INSERT INTO fabric_watch (fabric_id, reserved_pkeys) VALUES ($1, '[300]')", w.Fabric)
	w.within(t, t.Context(), func(ctx context.Context) {
		require.NoError(t, w.allocations.Insert(ctx, whole, part))
		got, err := work.Instances(ctx, w.lease)
		require.NoError(t, err)
		require.Len(t, got, 2)
		require.Equal(t, whole, got[0].Allocation)
		require.True(t, got[0].WholeNode)
		require.Equal(t, "h100-0", got[0].NodeName)
		require.Equal(t, "bare_metal", got[0].Mode)
		require.Len(t, got[0].GPUUUIDs, 8)
		require.Len(t, got[0].Ports, 3, "the ports of its bays, and what belongs to the whole node")
		require.Equal(t, delivery.ManagedKeys{Low: 0x0100, High: 0x01ff, Reserved: []protocol.PKey{300}}, got[0].Managed)
		require.False(t, got[1].WholeNode)
		require.Equal(t, []string{"GPU-4", "GPU-5"}, got[1].GPUUUIDs)
		require.Equal(t, []protocol.GUID{0xe1}, got[1].Ports)
		begin, err := work.Begin(ctx, w.lease)
		require.NoError(t, err)
		require.Equal(t, whole.Occupied.Start, begin)
	})
	w.Exec(t, "UPDATE lease SET fabric_id = NULL WHERE id = $1", w.lease)
	w.within(t, t.Context(), func(ctx context.Context) {
		got, err := work.Instances(ctx, w.lease)
		require.NoError(t, err)
		require.Empty(t, got[0].Ports, "no InfiniBand comes with it")
	})
}

func TestSlotsAreBlockedByEarlierUseAndByALostNode(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	work, mine, earlier := postgres.NewLeaseWork(w.db), w.allocation(), w.allocation()
	other := w.Lease(t, w.customer, w.InstanceType(t, "h100-sxm.1x.ndr", "h100-sxm-80gb.8", "bare_metal", 1), w.start, w.start.Add(time.Hour))
	earlier.Lease, earlier.Slots = other, lease.Slots{From: 8, To: 16}
	earlier.Occupied = lease.Window{Start: mine.Occupied.Start.Add(-time.Hour), End: mine.Occupied.Start}
	blockers := func() (found []delivery.Blocker) {
		w.within(t, t.Context(), func(ctx context.Context) {
			var err error
			found, err = work.Blockers(ctx, w.lease)
			require.NoError(t, err)
		})
		return found
	}
	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, mine)) })
	require.Empty(t, blockers())

	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, earlier)) })
	require.Equal(t, []delivery.Blocker{{Allocation: mine.ID, NodeName: "h100-0"}}, blockers(), "also when the earlier one's time is over")
	w.Exec(t, "UPDATE lease SET state = 'provisioning' WHERE id = $1", w.lease)
	w.within(t, t.Context(), func(ctx context.Context) {
		waiters, err := work.Waiters(ctx, earlier)
		require.NoError(t, err)
		require.Equal(t, []ids.Lease{w.lease}, waiters)
	})

	w.Exec(t, "UPDATE allocation SET state = 'released', released_at = now() WHERE id = $1", earlier.ID)
	require.Empty(t, blockers())
	w.within(t, t.Context(), func(ctx context.Context) {
		require.NoError(t, work.QuarantineNode(ctx, w.node, "a GPU fell off the bus"))
	})
	require.Equal(t, []delivery.Blocker{{Allocation: mine.ID, NodeName: "h100-0", NodeLost: true}}, blockers())
}

func TestALaterBookingThatAlreadyRunsBlocksToo(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	work, mine, later := postgres.NewLeaseWork(w.db), w.allocation(), w.allocation()
	later.Lease = w.Lease(t, w.customer, w.InstanceType(t, "h100-sxm.1x.ndr", "h100-sxm-80gb.8", "bare_metal", 1), w.start, w.start.Add(time.Hour))
	later.Occupied = lease.Window{Start: mine.Occupied.End, End: mine.Occupied.End.Add(time.Hour)}
	later.State = lease.InUse
	w.within(t, t.Context(), func(ctx context.Context) {
		require.NoError(t, w.allocations.Insert(ctx, mine, later))
		found, err := work.Blockers(ctx, w.lease)
		require.NoError(t, err)
		require.Len(t, found, 1)
	})
}

func TestALeaseIsDueWhenItsSlotsAreHeldForIt(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	work, mine := postgres.NewLeaseWork(w.db), w.allocation() // held from ten minutes before the start
	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, mine)) })
	for at, want := range map[time.Time]int{mine.Occupied.Start.Add(-time.Second): 0, mine.Occupied.Start: 1, w.start.Add(time.Hour): 1} {
		due, err := work.Due(t.Context(), at, 10)
		require.NoError(t, err)
		require.Len(t, due, want, at)
		live, err := work.Live(t.Context(), at)
		require.NoError(t, err)
		require.Len(t, live, want, at)
	}
	w.Exec(t, "UPDATE lease SET state = 'active' WHERE id = $1", w.lease)
	due, err := work.Due(t.Context(), w.start, 10)
	require.NoError(t, err)
	require.Empty(t, due)
	live, err := work.Live(t.Context(), w.start)
	require.NoError(t, err)
	require.Equal(t, []ids.Lease{w.lease}, live)
	left, err := work.Left(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
	w.Exec(t, "UPDATE lease SET state = 'closed' WHERE id = $1", w.lease)
	left, err = work.Left(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ids.Lease{w.lease}, left)
}

func TestOperationsEventsAndCertificatesComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	work, mine := postgres.NewLeaseWork(w.db), w.allocation()
	agent, step, op := ids.Make[ids.Agent](), ids.Make[ids.Step](), ids.Make[ids.Operation]()
	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, mine)) })
	w.Exec(t, `INSERT INTO agent (id, kind, site_id, node_id, public_key, created_at) VALUES ($1, 'node', $2, $3, $4, now())`, agent, w.Site, w.node, make([]byte, 32))
	w.Exec(t, `INSERT INTO step (id, lease_id, kind, attempt, remaining, created_at) VALUES ($1, $2, 'prepare', 2, 1, now())`, step, w.lease)
	w.Exec(t, `INSERT INTO operation (id, agent_id, step_id, lease_id, allocation_id, node_id, kind, dedup_key, epoch, slots, spec, pick_up_by, done_by, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, 'prepare', 'k', 7, '[0,64)', '{"lease_id": "x"}', $7, $8, now())`,
		op, agent, step, w.lease, mine.ID, w.node, w.start, w.start.Add(time.Hour))
	read := func() (o delivery.Operation) {
		w.within(t, t.Context(), func(ctx context.Context) {
			found, err := work.Operations(ctx, w.lease, "prepare")
			require.NoError(t, err)
			require.Len(t, found, 1)
			o = found[0]
		})
		return o
	}
	require.Equal(t, delivery.Operation{
		ID: op, Attempt: 2, Allocation: mine.ID, Node: w.node, Epoch: 7, State: delivery.Queued, Spec: json.RawMessage(`{"lease_id": "x"}`), DoneBy: w.start,
	}, read(), "what is queued must be picked up by then")
	w.Exec(t, `UPDATE operation SET state = 'failed', fault = '{"code": "c", "detail": "d", "retryable": true}', evidence = '{"a": 1}', finished_at = $2 WHERE id = $1`, op, w.start)
	o := read()
	require.Equal(t, &protocol.Fault{Code: "c", Detail: "d", Retryable: true}, o.Fault)
	require.Equal(t, w.start.Add(time.Hour), o.DoneBy)
	require.Equal(t, w.start, o.FinishedAt)
	require.JSONEq(t, `{"a": 1}`, string(o.Evidence))
	require.Nil(t, o.Signed)

	c := delivery.Certificate{
		ID: ids.Make[ids.Wipe](), Org: w.customer.Org, Lease: w.lease, Allocation: mine.ID, Node: w.node, Result: protocol.Wiped, CreatedAt: w.start,
		Envelope: protocol.Envelope{PayloadType: "t", Payload: []byte("p"), Signatures: []protocol.Signature{{KeyID: "k", Sig: []byte("s")}}},
	}
	w.within(t, t.Context(), func(ctx context.Context) {
		require.NoError(t, work.InsertCertificate(ctx, c))
		for _, reason := range []string{"a", "b"} {
			_, err := w.leases.AppendEvent(ctx, lease.Event{Lease: w.lease, Type: lease.EventNotice, At: w.start, Data: map[string]any{"key": reason}})
			require.NoError(t, err)
		}
		recorded, err := work.Recorded(ctx, w.lease, lease.EventNotice, "key")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, recorded)
		recorded, err = work.Recorded(ctx, w.lease, lease.EventNotice, "other")
		require.NoError(t, err)
		require.Empty(t, recorded)
	})
	for org, want := range map[ids.Org][]delivery.Certificate{w.customer.Org: {c}, w.Customer(t, "Stranger").Org: {}} {
		w.within(t, tenant.WithActor(t.Context(), tenant.Actor{Org: org}), func(ctx context.Context) {
			got, err := work.Certificates(ctx, w.lease)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestAFabricIsUnsettledWhileAPartitionIsOnItsWay(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	w.Exec(t, `INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at) VALUES ($1, $2, $3, $4, 7, 'desired', now(), now())`,
		ids.Make[ids.Partition](), w.customer.Org, w.Fabric, w.lease)
	for state, want := range map[string]int{"desired": 1, "programmed": 1, "verified": 0, "draining": 1, "clear": 1, "quarantined": 1, "free": 0} {
		w.Exec(t, "UPDATE partition SET state = $1", state)
		found, err := postgres.NewLeaseWork(w.db).Unsettled(t.Context())
		require.NoError(t, err)
		require.Len(t, found, want, state)
	}
}

func TestOneSessionOfAllHasTheLock(t *testing.T) {
	t.Parallel()
	db := open(t)
	held, unlock, err := db.TryLock(t.Context(), 42)
	require.NoError(t, err)
	require.NoError(t, held(t.Context()))
	_, second, err := db.TryLock(t.Context(), 42)
	require.NoError(t, err)
	require.Nil(t, second)
	unlock()
	_, second, err = db.TryLock(t.Context(), 42)
	require.NoError(t, err)
	require.NotNil(t, second)
	second()
}

func TestALockIsLostWithItsSessionAndThatIsTold(t *testing.T) {
	t.Parallel()
	w, db := newWire(t)
	held, unlock, err := db.TryLock(t.Context(), 42)
	require.NoError(t, err)
	w.cut()
	requireUnavailable(t, held(t.Context()))
	unlock()
	w.mend()
	require.Eventually(t, func() bool {
		_, again, err := db.TryLock(t.Context(), 42)
		if err != nil || again == nil { // the server has not noticed yet
			return false
		}
		again()
		return true
	}, time.Minute, time.Millisecond)
}

func TestAMessageIsClaimedByOneRelayAndAgainIfItIsNotDelivered(t *testing.T) {
	t.Parallel()
	db := open(t)
	box, now := postgres.NewOutbox(db), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	put := func(topic string, at time.Time) {
		require.NoError(t, db.WithinTx(t.Context(), func(ctx context.Context) error { return box.Put(ctx, topic, "key", map[string]int{"n": 1}, at) }))
	}
	claim := func(at time.Time) []outbox.Message {
		found, err := box.Claim(t.Context(), []string{outbox.LeaseNudge}, 10, at, time.Minute)
		require.NoError(t, err)
		return found
	}
	put(outbox.LeaseNudge, now)
	put(outbox.Notify, now)
	put(outbox.LeaseNudge, now.Add(time.Hour))
	first := claim(now)
	require.Len(t, first, 1, "only what is due, and of the topics that were asked for")
	require.Equal(t, 1, first[0].Attempt)
	require.JSONEq(t, `{"n": 1}`, string(first[0].Payload))
	require.Empty(t, claim(now.Add(30*time.Second)), "it is the first relay's for a minute")
	again := claim(now.Add(2 * time.Minute))
	require.Len(t, again, 1)
	require.Equal(t, 2, again[0].Attempt)
	require.NoError(t, box.Done(t.Context(), []ids.Outbox{again[0].ID}, now))
	require.Empty(t, claim(now.Add(10*time.Minute)))
	gone, err := box.Forget(t.Context(), now.Add(time.Second))
	require.NoError(t, err)
	require.EqualValues(t, 1, gone)
}

func TestANudgeIsAnnouncedWhenItsTransactionCommits(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	listener, err := w.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer listener.Release()
	_, err = listener.Exec(t.Context(), "LISTEN "+outbox.Channel+"; LISTEN "+lease.Channel)
	require.NoError(t, err)
	box := postgres.NewOutbox(w.db)
	ctx := tenant.WithActor(t.Context(), tenant.Actor{Org: w.customer.Org})
	w.within(t, ctx, func(ctx context.Context) {
		require.NoError(t, box.Put(ctx, outbox.Notify, "nobody waits for this", nil, w.start))
		require.NoError(t, box.Put(ctx, outbox.LeaseNudge, w.lease.String(), nil, w.start))
		require.NoError(t, postgres.NewLeaseWork(w.db).Announce(ctx, w.lease))
	})
	wait, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, want := range []string{outbox.LeaseNudge, w.lease.String()} {
		heard, err := listener.Conn().WaitForNotification(wait)
		require.NoError(t, err)
		require.Equal(t, want, heard.Payload)
	}
}

func TestANodeIsSilentOnlyWhileItsSiteIsHeard(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	nodes := append(w.Nodes(t, "more", "hw", "bare_metal", 3, 4), w.node)
	now := w.start
	heard := func(ago ...time.Duration) map[ids.Node]time.Time {
		w.Exec(t, "DELETE FROM node_liveness")
		for i, d := range ago {
			w.Exec(t, "INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, $2)", nodes[i], now.Add(-d))
		}
		var silent map[ids.Node]time.Time
		w.within(t, t.Context(), func(ctx context.Context) {
			var err error
			silent, err = postgres.NewLeaseWork(w.db).Silent(ctx, nodes[:2], now.Add(-time.Minute))
			require.NoError(t, err)
		})
		return silent
	}
	require.Empty(t, heard(5*time.Second, 50*time.Second, 0, 0))
	require.Equal(t, map[ids.Node]time.Time{nodes[1]: now.Add(-61 * time.Second)}, heard(5*time.Second, 61*time.Second, time.Hour, 0))
	require.Empty(t, heard(5*time.Second, 61*time.Second, time.Hour, time.Hour), "when most of a site is silent, it is rather we who do not hear")
	require.Empty(t, heard(), "a node that was never heard tells nothing")
}
