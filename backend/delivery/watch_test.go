package delivery_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/tenant"
)

// watched is a ward whose lease runs on the ward's node and has its slots of it; three neighbours are heard.
func newWatched(t *testing.T, slots string) *ward {
	t.Helper()
	w := newWard(t)
	active := w.clock.Now().Add(-30 * time.Minute)
	w.Exec(t, "UPDATE lease SET state = 'active', outcome = '', released_at = NULL, closed_at = NULL, active_at = $2, end_at = $3 WHERE id = $1", w.lease, active, w.clock.Now().Add(time.Hour))
	w.Exec(t, "UPDATE allocation SET state = 'in_use', reason = '', slots = $2::text::int4range WHERE id = $1", w.allocation, slots)
	w.Exec(t, "UPDATE node SET state = 'available', state_reason = '', state_exit = ''")
	w.Exec(t, "INSERT INTO gpu (id, node_id, bay, uuid, vendor, model, memory_bytes, pci_address) SELECT gen_random_uuid(), $1, n, 'GPU-' || n, 'nvidia', 'H100', 1, n::text FROM generate_series(0, 7) n ON CONFLICT DO NOTHING", w.node)
	for _, node := range append(w.Nodes(t, "neighbour", "h100-sxm-80gb.8", "bare_metal", 3, 4), w.node) {
		w.Exec(t, "INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, $2)", node, w.clock.Now())
	}
	return w
}

// heard has every node but the ward's own heard now.
func (w *ward) heard(t *testing.T) {
	t.Helper()
	w.Exec(t, "UPDATE node_liveness SET seen_at = $1 WHERE node_id <> $2", w.clock.Now(), w.node)
}

func (w *ward) watch(t *testing.T) []string {
	t.Helper()
	require.NoError(t, w.delivery.Watch(t.Context()))
	rows, err := w.Pool.Query(t.Context(), "SELECT type || ' ' || to_char(at AT TIME ZONE 'UTC', 'HH24:MI:SS') FROM lease_event WHERE lease_id = $1 AND type LIKE 'node.outage%' ORDER BY seq", w.lease)
	require.NoError(t, err)
	var found []string
	for rows.Next() {
		var event string
		require.NoError(t, rows.Scan(&event))
		found = append(found, event)
	}
	require.NoError(t, rows.Err())
	return found
}

func (w *ward) leaseReason(t *testing.T) string {
	t.Helper()
	return scalar[string](t, w, "SELECT reason FROM lease WHERE id = $1", w.lease)
}

func TestANodeThatFallsSilentInARunningLeaseIsOutUntilItIsHeard(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "[0,64)") // it is 12:00:00
	require.Empty(t, w.watch(t))
	w.clock.Advance(50 * time.Second)
	w.heard(t)
	require.Empty(t, w.watch(t), "a heartbeat may be late")
	w.clock.Advance(50 * time.Second)
	w.heard(t)
	for range 2 {
		require.Equal(t, []string{"node.outage_began 12:00:00"}, w.watch(t), "since it was last heard, and said once")
	}
	require.Contains(t, w.leaseReason(t), "h100-0 is out since 2026-03-03T12:00:00Z")
	require.Equal(t, 2, scalar[int](t, w, "SELECT count(*) FROM outbox WHERE topic = 'notify'"), "the customer and the operator are told")
	w.clock.Advance(time.Minute)
	w.Exec(t, "UPDATE node_liveness SET seen_at = $1", w.clock.Now())
	require.Equal(t, []string{"node.outage_began 12:00:00", "node.outage_ended 12:02:40"}, w.watch(t))
	require.Empty(t, w.leaseReason(t))
	require.Len(t, w.watch(t), 2)

	var facts metering.Facts
	require.NoError(t, w.db.WithinTx(tenant.AsPlatform(t.Context()), func(ctx context.Context) (err error) {
		facts, err = postgres.NewMetering(w.db).Facts(ctx, w.lease, false)
		return err
	}))
	facts.Events = append([]lease.Event{{Type: lease.EventActive, At: facts.Lease.ActiveAt}}, facts.Events...)
	intervals, err := metering.Intervals(facts, w.clock.Now().Add(time.Minute))
	require.NoError(t, err)
	var out time.Duration
	for _, i := range intervals {
		if i.Class == metering.Outage {
			out += i.To.Sub(i.From)
		}
	}
	require.Equal(t, 160*time.Second, out, "its time is not billed")
	w.requireHealthy(t)
}

func TestASilentSiteIsWeWhoDoNotHear(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "[0,64)")
	w.clock.Advance(10 * time.Minute) // nobody is heard
	require.Empty(t, w.watch(t))
}

func TestADeviceThatFailsConcernsWhoHasIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slots, device, class string
		onset                time.Duration // from now
		want                 []string
	}{
		"a GPU of a whole node":       {"[0,64)", "GPU-5", "prevents_allocation", -20 * time.Second, []string{"node.outage_began 11:59:40"}},
		"the node":                    {"[0,8)", "", "prevents_allocation", -20 * time.Second, []string{"node.outage_began 11:59:40"}},
		"one's own GPU":               {"[8,16)", "GPU-1", "prevents_allocation", 0, []string{"node.outage_began 12:00:00"}},
		"somebody else's GPU":         {"[8,16)", "GPU-5", "prevents_allocation", 0, nil},
		"what only degrades":          {"[0,64)", "GPU-5", "degrades", 0, nil},
		"a node whose clock is wrong": {"[0,64)", "GPU-5", "prevents_allocation", -time.Hour, []string{"node.outage_began 12:00:00"}},
		"a node whose clock is ahead": {"[0,64)", "GPU-5", "prevents_allocation", time.Hour, []string{"node.outage_began 12:00:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, c.slots)
			w.Exec(t, `INSERT INTO node_condition (node_id, name, device, class, onset, exit, reported_at) VALUES ($1, 'gpu-off-bus', $2, $3, $4, 'reboot', now())`,
				w.node, c.device, c.class, w.clock.Now().Add(c.onset))
			require.Equal(t, c.want, w.watch(t))
			if c.want == nil {
				return
			}
			said := w.leaseReason(t)
			require.Contains(t, said, "it reports gpu-off-bus")
			w.clock.Advance(5 * time.Minute)
			w.Exec(t, "UPDATE node_liveness SET seen_at = $1", w.clock.Now())
			require.Equal(t, c.want, w.watch(t))
			require.Equal(t, said, w.leaseReason(t), "it began when it began")
			w.Exec(t, "UPDATE node_condition SET cleared_at = now()")
			require.Equal(t, append(c.want, "node.outage_ended 12:05:00"), w.watch(t))
		})
	}
}

func TestWhatIsOverIsNotWatched(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "[0,64)")
	w.Exec(t, "UPDATE lease SET state = 'releasing' WHERE id = $1", w.lease)
	w.Exec(t, `INSERT INTO node_condition (node_id, name, class, onset, exit, reported_at) VALUES ($1, 'gpu-off-bus', 'prevents_allocation', now(), 'reboot', now())`, w.node)
	require.Empty(t, w.watch(t))
}
