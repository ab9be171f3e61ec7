package fabric_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

func TestAnAuditHoldsEveryPortAgainstTheRows(t *testing.T) {
	t.Parallel()
	const key, other = 0x8001, 0x8002
	for name, c := range map[string]struct {
		change  func(w *world)
		verdict fabric.AuditVerdict
		drift   []string // kind: words
		alarms  int
	}{
		"all is well": {func(*world) {}, fabric.AuditClean, nil, 0},
		"an idle port fails open": {
			func(w *world) { w.subnet.of(w.nodes[2].port).hca = []protocol.PKey{0xffff} }, fabric.AuditDeviating,
			[]string{"fail_open: HCA port is a full member of the default partition"},
			1,
		},
		"a tenant's switch port fails open": {
			func(w *world) { w.subnet.of(w.nodes[0].port).sw = []protocol.PKey{key, 0xffff} }, fabric.AuditDeviating,
			[]string{"fail_open: switch port is a full member of the default partition"},
			1,
		},
		"a stranger has a tenant's key": {
			func(w *world) { w.subnet.of(w.nodes[2].port).hca = []protocol.PKey{0x7fff, key} }, fabric.AuditDeviating,
			[]string{"unexpected_key: HCA port holds 0x8001, which it should not"},
			1,
		},
		"as a limited member": {
			func(w *world) { w.subnet.of(w.nodes[2].port).sw = []protocol.PKey{0x7fff, 0x0001} }, fabric.AuditDeviating,
			[]string{"unexpected_key: switch port holds 0x0001, which it should not"},
			1,
		},
		"a tenant has another key": {
			func(w *world) { w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{key, 0x7fff, other} }, fabric.AuditDeviating,
			[]string{"unexpected_key: HCA port holds 0x8002, which it should not"},
			1,
		},
		"a tenant's key is gone": {
			func(w *world) { w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{0x7fff} }, fabric.AuditDeviating,
			[]string{"missing_key: HCA port lacks 0x8001"},
			1,
		},
		"a tenant is a limited member of its own": {
			func(w *world) { w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{0x0001, 0x7fff} }, fabric.AuditDeviating,
			[]string{"missing_key: HCA port lacks 0x8001", "unexpected_key: HCA port holds 0x0001, which it should not"},
			2,
		},
		"a tenant's key is not first": {
			func(w *world) { w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{0x7fff, key} }, fabric.AuditDeviating,
			[]string{"misplaced_key: HCA port holds 0x7fff at index 0, not 0x8001"},
			1,
		},
		"nor need it be at the switch": {func(w *world) { w.subnet.of(w.nodes[0].port).sw = []protocol.PKey{0x7fff, key} }, fabric.AuditClean, nil, 0},
		"the default key is gone": {
			func(w *world) { w.subnet.of(w.nodes[2].port).hca = []protocol.PKey{0} }, fabric.AuditDeviating,
			[]string{"missing_key: HCA port lacks 0x7fff"},
			1,
		},
		"an unknown GUID": {func(w *world) { w.subnet.add(0xdead) }, fabric.AuditDeviating, []string{"unknown_port: is a port of no machine that we know"}, 0},
		"a port that cannot be read is unknown, not clean": {
			func(w *world) { w.subnet.of(w.nodes[2].port).dark = true }, fabric.AuditUnknown,
			[]string{"unreadable: HCA port could not be read"},
			0,
		},
		"a port that is not there": {
			func(w *world) { delete(w.subnet.links, w.nodes[2].port) }, fabric.AuditUnknown,
			[]string{"unreadable: was not seen on the fabric"},
			0,
		},
		"a foreign key": {func(w *world) {
			w.Exec(w.t, "UPDATE fabric SET managed_high = 4095")
			w.subnet.of(w.nodes[2].port).hca = []protocol.PKey{0x7fff, 0x9000}
		}, fabric.AuditClean, nil, 0},
		"the manager's configuration was replaced": {func(w *world) {
			w.subnet.posture = []protocol.PostureCheck{{Item: "default_membership_limited", Verdict: protocol.False, Detail: "line 1: garbage"}}
		}, fabric.AuditDeviating, []string{"configuration: line 1: garbage"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			w.subnet.trusting = true
			id := w.lease(w.nodes[0], w.nodes[1])
			w.join(id)
			w.sweep()
			require.Equal(t, fabric.Isolated, w.status(id), w.words(id))
			c.change(w)
			audit := w.audit()
			require.Equal(t, c.verdict, audit.Verdict, audit)
			require.ElementsMatch(t, c.drift, w.drift())
			require.Equal(t, c.alarms, w.alarms("fabric.drift"))
			if name == "a foreign key" {
				require.Equal(t, []protocol.PKey{0x1000}, audit.Foreign)
			}
			again := w.count("SELECT count(*) FROM drift")
			require.Equal(t, len(c.drift), again)
		})
	}
}

func TestDriftIsRepairedAndSeenToBeOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.subnet.trusting = true
	id := w.lease(w.nodes[0])
	w.join(id)
	w.sweep()
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0xffff}
	w.subnet.of(w.nodes[0].port).sw = []protocol.PKey{0x7fff}
	w.audit()
	require.Len(t, w.drift(), 2)

	waiting := w.lease(w.nodes[2])
	w.join(waiting)
	order := w.sweep() // what is pending, and the repair, in one
	require.Equal(t, protocol.ApplyPartitions, order.Kind)
	require.Contains(t, string(order.Spec), `"repair": ["`)
	require.Empty(t, w.drift())
	require.Equal(t, fabric.Isolated, w.status(waiting))
	require.Equal(t, 2, w.count("SELECT count(*) FROM drift WHERE ended_at IS NOT NULL AND attempts = 1 AND repair <> ''"))
	require.Equal(t, fabric.AuditClean, w.audit().Verdict)
	require.Nil(t, w.sweep())
}

func TestARepairThatDoesNotHelpIsAnAlarmAndStaysOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.trusting, w.subnet.deaf = true, true
	id := w.lease(w.nodes[0])
	w.join(id)
	w.sweep()
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0x7fff, 0x8001}
	w.audit()
	for range 10 {
		w.sweep()
		w.clock.Advance(time.Minute)
	}
	require.Equal(t, 3, w.count("SELECT attempts FROM drift WHERE ended_at IS NULL AND gave_up_at IS NOT NULL"))
	require.Equal(t, 1, w.alarms("fabric.drift"))
	require.Equal(t, 1, w.alarms("fabric.repair_failed"))
	for op := w.sweep(); op != nil; op = w.sweep() {
		require.Equal(t, protocol.ObserveFabric, op.Kind, "the manager is left in peace")
	}

	w.subnet.deaf = false
	w.audit() // an admin has it tried again
	w.sweep()
	require.Empty(t, w.drift())
}

func TestNoLeaseIsHandedOverOnAFabricThatIsOpen(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(w *world){
		"a host port is a full member": func(w *world) { w.subnet.of(w.nodes[1].port).sw = []protocol.PKey{0xffff} },
		"the manager's configuration may make all ports that": func(w *world) {
			w.subnet.posture = []protocol.PostureCheck{{Item: "default_membership_limited", Verdict: protocol.False, Detail: "garbage"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.subnet.trusting, w.subnet.deaf = true, true
			id := w.lease(w.nodes[0])
			w.join(id)
			w.sweep()
			open(w)
			w.audit()
			require.Equal(t, fabric.Broken, w.status(id), "its own ports are right, and yet")
			require.Contains(t, w.words(id), "the fabric does not keep tenants apart since 2026-03-01T12:00:00Z")
			require.Equal(t, 2, w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge' AND key = $1", id.String()), "it is told")
			w.witness(id, fabric.BeforeActive, 1)
			verdict, statement := w.attest(id, fabric.BeforeActive)
			require.Equal(t, fabric.Refuted, verdict)
			require.Contains(t, strings.Join(statement.Predicate.Reasons, ";"), "does not keep tenants apart")

			nudged := w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge' AND key = $1", id.String())
			w.subnet.deaf, w.subnet.posture = false, []protocol.PostureCheck{{Item: "default_membership_limited", Verdict: protocol.True}}
			w.clock.Advance(time.Second)
			w.sweep()
			require.Empty(t, w.drift())
			require.Equal(t, fabric.Isolated, w.status(id), w.words(id))
			require.Equal(t, nudged+1, w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge' AND key = $1", id.String()))
			w.witness(id, fabric.BeforeActive, 2)
			verdict, statement = w.attest(id, fabric.BeforeActive)
			require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
		})
	}
}

func TestWhatCannotBeReadIsNotOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.trusting, w.subnet.deaf = true, true
	l := w.subnet.of(w.nodes[1].port)
	l.hca = []protocol.PKey{0xffff}
	w.audit()
	l.dark = true
	w.clock.Advance(time.Minute)
	w.audit()
	require.ElementsMatch(t, []string{"fail_open: HCA port is a full member of the default partition", "unreadable: HCA port could not be read"}, w.drift())
	l.dark, l.hca = false, []protocol.PKey{0x7fff}
	w.clock.Advance(time.Minute)
	w.audit()
	require.Empty(t, w.drift())
}

func TestAuditsComeByThemselvesAndOnDemand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	due := func() int {
		found, err := postgres.NewLeaseWork(w.db).AuditsDue(t.Context(), w.clock.Now())
		require.NoError(t, err)
		return len(found)
	}
	require.Zero(t, due(), "nobody was ever there to audit")
	require.Nil(t, w.sweep())
	w.Exec(t, "UPDATE fabric SET observed_at = $1", start())
	require.Equal(t, 1, due())
	require.Equal(t, protocol.ObserveFabric, w.sweep().Kind)
	require.Zero(t, due())
	w.clock.Advance(5 * time.Minute)
	require.Equal(t, 1, due())
	id := w.lease(w.nodes[0])
	w.join(id)
	require.Equal(t, protocol.ApplyPartitions, w.sweep().Kind, "what people wait for goes first")
	require.Equal(t, protocol.ObserveFabric, w.sweep().Kind)
	w.clock.Advance(11 * time.Minute)
	w.join(w.lease(w.nodes[1]))
	require.Equal(t, protocol.ObserveFabric, w.sweep().Kind, "unless the audit is far too late")
	require.Equal(t, protocol.ApplyPartitions, w.sweep().Kind)

	require.Equal(t, "platform", w.audit().AskedBy)
	require.Equal(t, 1, w.count("SELECT count(*) FROM audit_event WHERE action = 'fabric.audit_asked'"))
	w.clock.Advance(5 * time.Minute)
	w.sweep()
	audits, err := w.fabric.Audits(t.Context(), w.Fabric, 10)
	require.NoError(t, err)
	require.Len(t, audits, 5)
	require.Empty(t, audits[0].AskedBy)
	require.Equal(t, 2, w.count("SELECT count(*) FROM operation WHERE kind = 'observe_fabric' AND signed IS NULL"), "old readings are not kept for ever")
	_, err = w.fabric.AskAudit(t.Context(), ids.Make[ids.Fabric]())
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = w.fabric.Audits(t.Context(), ids.Make[ids.Fabric](), 1)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestAnAuditThatNobodyDidIsUnknownAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0xffff}
	w.audit()
	_, err := w.fabric.AskAudit(t.Context(), w.Fabric)
	require.NoError(t, err)
	w.Exec(t, "UPDATE drift SET gave_up_at = now()") // else repairs go first
	inFlight, lookAt, err := w.fabric.Plan(t.Context(), w.Fabric)
	require.NoError(t, err)
	require.True(t, inFlight)
	w.clock.Set(lookAt)
	require.NoError(t, w.fleet.ExpireLate(t.Context(), w.clock.Now()))
	require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
	audits, err := w.fabric.Audits(t.Context(), w.Fabric, 1)
	require.NoError(t, err)
	require.Equal(t, fabric.AuditUnknown, audits[0].Verdict)
	require.Contains(t, audits[0].Detail, "did not pick the work up")
	require.Len(t, w.drift(), 1)
}

func TestAKeyIsReusedOnlyWhenNobodyHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.subnet.trusting = true
	first := w.lease(w.nodes[0])
	w.join(first)
	w.sweep()
	key := w.pkey(first)
	w.leave(first)
	w.sweep()
	w.clock.Advance(time.Second)
	w.audit()
	require.Equal(t, fabric.Clear, w.state(first), "a look too soon after the first is not the second")
	w.clock.Advance(time.Second)
	w.sweep()
	require.Equal(t, fabric.Quarantined, w.state(first))
	w.turn(first, "released")

	w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{0x8001, 0x7fff} // a former member has it again
	w.clock.Advance(9 * time.Minute)
	w.audit()
	require.Equal(t, fabric.Draining, w.state(first))
	w.clock.Advance(2 * time.Minute)
	second := w.lease(w.nodes[1])
	w.join(second)
	require.Equal(t, key+1, w.pkey(second), "its time is over, and yet it is not free")
	order := w.sweep() // what is new, and the repair
	require.True(t, w.subnet.of(w.nodes[0].port).clear(key), string(order.Spec))
	require.Equal(t, fabric.Clear, w.state(first))
	w.clock.Advance(2 * time.Second)
	w.sweep()
	require.Equal(t, fabric.Quarantined, w.state(first))

	w.subnet.deaf = true
	w.subnet.of(w.nodes[2].port).sw = []protocol.PKey{0x7fff, 0x8001} // somebody who never was a member has it
	w.clock.Advance(11 * time.Minute)
	w.audit()
	third := w.lease(w.nodes[0])
	w.join(third)
	require.Equal(t, key+2, w.pkey(third), "a port holds it")
	w.subnet.of(w.nodes[2].port).sw = []protocol.PKey{0x7fff}
	w.sweep()
	w.clock.Advance(time.Minute)
	w.audit()
	fourth := w.lease(w.nodes[2])
	w.join(fourth)
	require.Equal(t, key, w.pkey(fourth))
	require.Equal(t, fabric.Free, w.state(first))
}

func TestAnAuditDoesNotCallALeaseClearOfWhichTheManagerKnowsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.trusting = true
	id := w.lease(w.nodes[0])
	w.join(id)
	w.sweep()
	w.subnet.of(w.nodes[0].port).hca, w.subnet.of(w.nodes[0].port).sw = []protocol.PKey{0x7fff}, []protocol.PKey{0x7fff}
	w.Exec(t, "UPDATE fabric SET observed_at = $1", start())
	w.Exec(t, "INSERT INTO fabric_watch (fabric_id, audit_due_at) VALUES ($1, $2)", w.Fabric, start().Add(-time.Hour))
	require.True(t, w.plan()) // the audit is late
	orders := w.orders()
	w.leave(id)
	w.answer(orders[0])
	require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
	require.Equal(t, fabric.Draining, w.state(id), "the manager's configuration still has it, and may put it back")
	w.sweep()
	require.Equal(t, fabric.Clear, w.state(id))
}

func TestReservedKeysAreSomebodyElses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	require.NoError(t, w.fabric.Reserve(t.Context(), w.Fabric, []protocol.PKey{2, 1, 2}))
	require.NoError(t, w.fabric.Reserve(t.Context(), w.Fabric, []protocol.PKey{1, 2}))
	require.Equal(t, 1, w.count("SELECT count(*) FROM audit_event WHERE action = 'fabric.pkeys_reserved'"))
	id := w.lease(w.nodes[0])
	w.join(id)
	require.EqualValues(t, 3, w.pkey(id))
	order := w.sweep()
	require.Contains(t, string(order.Spec), `"reserved": ["0x0001", "0x0002"]`)
	w.subnet.of(w.nodes[0].port).hca = []protocol.PKey{0x8003, 0x7fff, 0x8002}
	audit := w.audit()
	require.Equal(t, fabric.AuditClean, audit.Verdict)
	require.Equal(t, []protocol.PKey{2}, audit.Foreign, "reported, and not touched")
	w.witness(id, fabric.BeforeActive, 1)
	verdict, statement := w.attest(id, fabric.BeforeActive)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)

	require.Equal(t, "pkey-in-use", fault.CodeOf(w.fabric.Reserve(t.Context(), w.Fabric, []protocol.PKey{3})))
	require.Equal(t, "reserved-keys", fault.CodeOf(w.fabric.Reserve(t.Context(), w.Fabric, []protocol.PKey{0x8001})))
	require.Equal(t, "reserved-keys", fault.CodeOf(w.fabric.Reserve(t.Context(), w.Fabric, make([]protocol.PKey, 1))))
	require.NoError(t, w.fabric.Reserve(t.Context(), w.Fabric, nil))
}

func TestAPortThatIsFullOfForeignKeysTakesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.Exec(t, "UPDATE fabric SET managed_high = 255, max_pkeys_per_port = 4")
	foreign := func(n int) {
		keys := []protocol.PKey{0x7fff}
		for i := range n {
			keys = append(keys, protocol.PKey(0x9000+i))
		}
		w.subnet.of(w.nodes[0].port).hca = keys
		w.clock.Advance(time.Minute)
		w.audit()
	}
	foreign(3)
	id := w.lease(w.nodes[0])
	w.join(id)
	require.Equal(t, fabric.Broken, w.status(id))
	require.Contains(t, w.words(id), "full of foreign keys: "+w.nodes[0].port.String())
	other := w.lease(w.nodes[1])
	w.join(other)
	require.Equal(t, fabric.Pending, w.status(other))
	foreign(2)
	w.join(id)
	require.Equal(t, fabric.Pending, w.status(id))
}

func TestTheLeaveToShrinkDoesNotDependOnHowManySweepsThereWere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	var leases []ids.Lease
	for _, m := range w.nodes {
		leases = append(leases, w.lease(m))
		w.join(leases[len(leases)-1])
	}
	w.sweep()
	for range 12 {
		w.clock.Advance(time.Minute)
		w.audit()
	}
	for _, id := range leases {
		w.leave(id)
	}
	order := w.sweep()
	require.Contains(t, string(order.Spec), `"allow_shrink": true`)
	require.Equal(t, fabric.Gone, w.status(leases[0]))
}

func TestWhichItemsOfPostureBar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		item    string
		verdict protocol.Verdict
		bars    bool
	}{
		{"default_membership_limited", protocol.True, false},
		{"default_membership_limited", protocol.False, true},
		{"default_membership_limited", protocol.Unknown, true},
		{"m_key_set", protocol.True, false},
		{"m_key_set", protocol.False, true},
		{"m_key_set", protocol.Unknown, false},
		{"guests_denied_sm", protocol.Unknown, false},
	} {
		check := protocol.PostureCheck{Item: c.item, Verdict: c.verdict}
		require.Equal(t, c.bars, fabric.Bars(check), check)
	}
	w := newWorld(t, 1)
	w.Exec(t, `UPDATE fabric SET posture = '[{"item": "m_key_set", "verdict": "unknown"}]'`)
	w.subnet.posture = []protocol.PostureCheck{{Item: "default_membership_limited", Verdict: protocol.Unknown}}
	w.audit()
	id := w.lease(w.nodes[0])
	w.join(id)
	require.Contains(t, w.words(id), "default_membership_limited is unknown", "a sweep's word about the posture is fresher than the inventory's")
}

func TestWhatAnAdminDismissesIsOverUntilItIsSeenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.trusting, w.subnet.deaf = true, true
	w.subnet.add(0xdead)
	id := w.lease(w.nodes[0])
	w.join(id)
	w.sweep()
	w.subnet.of(0xdead).hca = []protocol.PKey{0xffff}
	w.audit()
	w.subnet.of(0xdead).dark = true // it was unplugged
	w.audit()
	require.Equal(t, fabric.Broken, w.status(id), "it cannot be seen to be over")
	nudged := w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge'")
	require.NoError(t, w.fabric.Dismiss(t.Context(), w.Fabric, 0xdead, "unplugged"))
	require.Equal(t, fabric.Isolated, w.status(id), w.words(id))
	require.Equal(t, nudged+1, w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge'"), "who waited is told")
	require.Empty(t, w.drift())
	require.Equal(t, "drift-not-found", fault.CodeOf(w.fabric.Dismiss(t.Context(), w.Fabric, 0xdead, "unplugged")))
	require.Equal(t, fault.NotFound, fault.KindOf(w.fabric.Dismiss(t.Context(), ids.Make[ids.Fabric](), 0, "x")))

	w.subnet.of(0xdead).dark = false
	w.audit()
	require.Equal(t, fabric.Broken, w.status(id), "it was not")
}

func TestAStrangersPortIsAnAlarmWhenItStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.add(0xdead)
	w.subnet.add(0xbeef)
	w.audit()
	require.Zero(t, w.alarms("fabric.drift"), "a machine is on the fabric before its agent has said so")
	delete(w.subnet.links, 0xbeef) // one that was only being tried
	for range 3 {
		w.clock.Advance(time.Minute)
		w.audit()
		require.Equal(t, 1, w.alarms("fabric.drift"), "the one that stays, and once")
	}
}

func TestAManagersPortMayBeAFullMemberAndNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	const standby = protocol.GUID(0xbeef)
	w.subnet.add(standby)
	w.audit()
	require.Equal(t, []string{"unknown_port: is a port of no machine that we know"}, w.drift())
	w.subnet.of(standby).hca, w.subnet.of(standby).sw = []protocol.PKey{0xffff}, []protocol.PKey{0xffff} // it has taken over
	require.Equal(t, fabric.AuditDeviating, w.audit().Verdict, "a manager that nobody has named")

	require.NoError(t, w.fabric.Manage(t.Context(), w.Fabric, []protocol.GUID{standby}))
	require.Equal(t, "port-for-rent", fault.CodeOf(w.fabric.Manage(t.Context(), w.Fabric, []protocol.GUID{w.nodes[0].port})))
	require.Equal(t, "manager-ports", fault.CodeOf(w.fabric.Manage(t.Context(), w.Fabric, []protocol.GUID{0})))
	w.clock.Advance(time.Minute)
	require.Equal(t, fabric.AuditClean, w.audit().Verdict)
	require.Empty(t, w.drift())
	w.subnet.of(standby).hca = []protocol.PKey{0x7fff} // the first one rules again
	require.Equal(t, fabric.AuditClean, w.audit().Verdict)
	w.subnet.of(standby).hca = []protocol.PKey{0xffff, 0x8001}
	require.Equal(t, fabric.AuditDeviating, w.audit().Verdict, "a tenant's key is as wrong there as anywhere")
}

func TestTheManagedRangeIsAnAdminsToSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	require.NoError(t, w.fabric.Range(t.Context(), w.Fabric, 0x0100, 0x01ff))
	require.NoError(t, w.fabric.Range(t.Context(), w.Fabric, 0x0100, 0x01ff))
	require.Equal(t, 1, w.count("SELECT count(*) FROM audit_event WHERE action = 'fabric.range_set'"))
	id := w.lease(w.nodes[0])
	w.join(id)
	require.EqualValues(t, 0x0100, w.pkey(id))
	require.Contains(t, string(w.sweep().Spec), `"managed_low": "0x0100"`)
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0x7fff, 0x8001}
	audit := w.audit()
	require.Equal(t, fabric.AuditClean, audit.Verdict)
	require.Equal(t, []protocol.PKey{1}, audit.Foreign)

	require.Equal(t, "pkey-in-use", fault.CodeOf(w.fabric.Range(t.Context(), w.Fabric, 0x0101, 0x01ff)))
	require.NoError(t, w.fabric.Range(t.Context(), w.Fabric, 0x0100, 0x0100))
	for _, bad := range [][2]protocol.PKey{{0, 5}, {6, 5}, {1, 0x7fff}, {0x8001, 0x8002}} {
		require.Equal(t, "managed-range", fault.CodeOf(w.fabric.Range(t.Context(), w.Fabric, bad[0], bad[1])), bad)
	}
	other := w.lease(w.nodes[1])
	w.join(other)
	require.Contains(t, w.words(other), "all keys of the fabric are in use or at rest")
}

func TestAMachineThatFindsItsPortsNotClearHasItsFabricAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.audit()
	due := func() bool {
		found, err := postgres.NewLeaseWork(w.db).AuditsDue(t.Context(), w.clock.Now())
		require.NoError(t, err)
		return len(found) > 0
	}
	require.False(t, due())
	w.clock.Advance(time.Minute)
	id := w.lease(w.nodes[1])
	require.NoError(t, w.fabric.Witness(t.Context(), id, fabric.OnDemand, 1)) // any work for the machine
	w.Exec(t, `UPDATE operation SET state = 'failed', finished_at = $1, fault = '{"code": "ports-not-clear"}' WHERE node_id = $2`, w.clock.Now(), w.nodes[1].node)
	w.Exec(t, "UPDATE operation SET state = 'expired' WHERE lease_id = $1 AND node_id IS NULL", id)
	require.True(t, due())
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0xffff}
	require.Equal(t, protocol.ObserveFabric, w.sweep().Kind)
	require.NotEmpty(t, w.drift())
	require.Equal(t, protocol.ApplyPartitions, w.sweep().Kind, "the repair; one finding is one audit")
	require.Empty(t, w.drift())
	require.False(t, due())
}
