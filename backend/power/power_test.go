package power_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/power"
	"github.com/leasehold/leasehold/tools/virtualsite/bmc"
)

func TestARegisteredMachineBootsTheServiceOSAndItsAgentEnrolsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := newKey(t)
	tokens := make(chan string, 1)
	w.box.does(func(network bool) {
		if !network {
			t.Error("it booted from its disk")
		}
		token, script := w.script(t, "52-54-00-00-00-01")
		if !strings.Contains(script, "leasehold.node=metal-1") || !strings.Contains(script, "leasehold.server=http://control.test") {
			t.Errorf("it was told %s", script)
		}
		if _, err := w.enroll(t, token, key); err != nil {
			t.Error(err)
		}
		tokens <- token
	})
	w.run(t, "w1")
	require.Nil(t, w.await(t, w.first(t)))
	require.Equal(t, power.StageService, w.stage(t))
	token := take(t, tokens)
	_, err := w.enroll(t, token, key)
	require.NoError(t, err, "its first answer was lost")
	_, err = w.enroll(t, token, newKey(t))
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "somebody else has read the token")
	after, _ := w.script(t, "52-54-00-00-00-01")
	require.Empty(t, after, "a boot that was used arms nobody")
}

func TestOnlyTheMachineThatIsArmedIsGivenAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token, script := w.script(t, "52-54-00-00-00-01")
	require.Empty(t, token, "nothing has armed it yet")
	require.Contains(t, script, "exit")
	for _, mac := range []string{"52-54-00-00-00-02", "nonsense", "52-54-00-00-00-01-02-03"} {
		token, _ := w.script(t, mac)
		require.Empty(t, token)
	}
	_, err := w.enroll(t, "lhb_guessed", newKey(t))
	require.Equal(t, fault.Forbidden, fault.KindOf(err))
	armed := make(chan struct{}, 1)
	w.box.does(func(bool) { armed <- struct{}{} })
	w.run(t, "w1")
	take(t, armed)
	first, _ := w.script(t, "52-54-00-00-00-01")
	second, _ := w.script(t, "52-54-00-00-00-01")
	require.NotEmpty(t, second)
	_, err = w.enroll(t, first, newKey(t))
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "a later script makes an earlier one's token worthless")
	_, err = w.enroll(t, second, newKey(t))
	require.NoError(t, err)
}

func TestATokenEndsWithItsBoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boots := make(chan string, 2)
	w.box.does(func(bool) {
		token, _ := w.script(t, "52-54-00-00-00-01")
		boots <- token
	})
	w.Exec(t, "UPDATE operation SET done_by = now() + interval '2 seconds'")
	w.run(t, "w1")
	token := take(t, boots)
	failure := w.await(t, w.first(t))
	require.NotNil(t, failure)
	require.Equal(t, power.CodeNoAgent, failure.Code)
	_, err := w.enroll(t, token, newKey(t))
	require.Equal(t, fault.Forbidden, fault.KindOf(err))
	require.NotEqual(t, power.StageService, w.stage(t))
}

func TestAnAgentsIdentityEndsWhenItsMachineIsSwitched(t *testing.T) {
	t.Parallel()
	for _, goal := range []power.Goal{power.GoalOff, power.GoalTenant, power.GoalService} {
		t.Run(string(goal), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			key := newKey(t)
			w.box.does(func(network bool) {
				if token, _ := w.script(t, "52-54-00-00-00-01"); network && token != "" {
					_, _ = w.enroll(t, token, key)
				}
			})
			stop := w.run(t, "w1")
			require.Nil(t, w.await(t, w.first(t)))
			stop()
			var living int
			count := "SELECT count(*) FROM agent WHERE node_id = $1 AND revoked_at IS NULL"
			require.NoError(t, w.Pool.QueryRow(t.Context(), count, w.node).Scan(&living))
			require.Equal(t, 1, living)
			w.box.does(func(bool) {})
			w.ask(t, goal, ids.Allocation{}, 0, 2*time.Second)
			w.run(t, "w2")
			require.Eventually(t, func() bool {
				require.NoError(t, w.Pool.QueryRow(t.Context(), count, w.node).Scan(&living))
				return living == 0
			}, 10*time.Second, 20*time.Millisecond)
			require.NotEqual(t, power.StageService, w.stage(t))
		})
	}
}

// tenancy is an allocation of the whole machine in a lease's hands.
func (w *world) tenancy(t *testing.T, state string) (ids.Allocation, int64) {
	t.Helper()
	kind := w.InstanceType(t, "metal.8x", "mi250x-128gb.8", "bare_metal", 8)
	id := w.Lease(t, w.Customer(t, "Acme"), kind, time.Now(), time.Now().Add(time.Hour))
	w.Exec(t, "UPDATE lease SET state = $2, active_at = CASE WHEN $2 = 'active' THEN now() END WHERE id = $1", id, state)
	a := ids.Make[ids.Allocation]()
	w.Exec(t, `INSERT INTO allocation (id, node_id, slots, occupied, purpose, lease_id, state, epoch, ordinal, created_at)
		VALUES ($1, $2, '[0,64)', tstzrange(now(), now() + interval '1 hour'), 'lease', $3, 'in_use', 7, 0, now())`, a, w.node, id)
	return a, 7
}

// settled is a world whose machine is in the service OS, with nobody working.
func settled(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.Exec(t, "UPDATE operation SET state = 'succeeded', finished_at = now()")
	w.Exec(t, "UPDATE machine SET stage = 'service'")
	return w
}

func TestATenantsSystemPhonesHomeOnceAndSaysWhereToLogIn(t *testing.T) {
	t.Parallel()
	w := settled(t)
	allocation, epoch := w.tenancy(t, "provisioning")
	var stale, address string
	require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) (err error) {
		if stale, err = w.power.PhoneHome(ctx, w.node, allocation, epoch); err != nil {
			return err
		}
		address, err = w.power.PhoneHome(ctx, w.node, allocation, epoch)
		return err
	}))
	require.Equal(t, http.StatusNotFound, w.phone(t, stale), "a later seed makes an earlier one's worthless")
	require.Equal(t, http.StatusNotFound, w.phone(t, "http://control.test"+power.PhonePath+"guessed"))
	w.box.does(func(network bool) {
		if network {
			t.Error("it booted from the network")
		}
		if w.stage(t) != power.StageTenant {
			t.Error("it had power before it counted as the tenant's")
		}
		for range 2 {
			if status := w.phone(t, address); status != http.StatusOK {
				t.Errorf("its call was answered %d", status)
			}
		}
	})
	w.run(t, "w1")
	id := w.ask(t, power.GoalTenant, allocation, epoch, 10*time.Second)
	require.Nil(t, w.await(t, id))
	var host, keys string
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT evidence->>'host', evidence->>'host_keys' FROM operation WHERE id = $1", id).Scan(&host, &keys))
	require.Equal(t, "192.0.2.1", host, "the address that httptest calls from")
	require.Equal(t, `["`+hostKey+`"]`, keys, "what is no key is left out")
}

func TestWhatIsInOtherHandsIsNotTouched(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		sql  string
		goal power.Goal
	}{
		"an epoch later":           {"UPDATE allocation SET epoch = 8", power.GoalTenant},
		"released":                 {"UPDATE allocation SET state = 'released', released_at = now()", power.GoalOff},
		"a wish after the lease":   {"UPDATE lease SET state = 'releasing'", power.GoalReboot},
		"a start after the lease":  {"UPDATE lease SET state = 'releasing'", power.GoalStart},
		"a machine that is nobody": {"UPDATE allocation SET epoch = 9", power.GoalService},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			allocation, epoch := w.tenancy(t, "active")
			w.Exec(t, change.sql)
			w.run(t, "w1")
			failure := w.await(t, w.ask(t, change.goal, allocation, epoch, 5*time.Second))
			require.NotNil(t, failure)
			require.Equal(t, power.CodeOverTaken, failure.Code)
			require.False(t, failure.Retryable)
			require.Zero(t, w.box.booted())
			require.Equal(t, power.StageService, w.stage(t))
		})
	}
}

func TestABMCThatLiesLeavesNobodyThinkingThatThePowerIsOff(t *testing.T) {
	t.Parallel()
	w := settled(t)
	require.NoError(t, w.box.TurnOn(t.Context(), false, nil))
	w.bmc.Behave(bmc.Lies)
	w.run(t, "w1")
	failure := w.await(t, w.ask(t, power.GoalOff, ids.Allocation{}, 0, 2*time.Second))
	require.NotNil(t, failure)
	require.True(t, failure.Retryable)
	require.Equal(t, power.StageUnknown, w.stage(t))
	w.bmc.Behave()
	require.Nil(t, w.await(t, w.ask(t, power.GoalOff, ids.Allocation{}, 0, 10*time.Second)))
	require.Equal(t, power.StageOff, w.stage(t))
	require.False(t, w.box.On())
}

func TestAMachineIsOneWorkersAtATimeAndWhatOneLeavesAnotherFinishes(t *testing.T) {
	t.Parallel()
	w := settled(t)
	allocation, epoch := w.tenancy(t, "active")
	// Two at once: the machine is switched once for each order, not twice.
	stopFirst, _ := w.run(t, "w1"), w.run(t, "w2")
	require.Nil(t, w.await(t, w.ask(t, power.GoalCycle, allocation, epoch, 20*time.Second)))
	require.Nil(t, w.await(t, w.ask(t, power.GoalCycle, allocation, epoch, 20*time.Second)))
	require.Equal(t, 2, w.box.booted())
	stopFirst()
	// One that is gone without a word holds a machine only for so long.
	w.Exec(t, "UPDATE machine SET worker = 'dead', worker_until = now() + interval '1 second'")
	require.Nil(t, w.await(t, w.ask(t, power.GoalCycle, allocation, epoch, 20*time.Second)))
	require.Equal(t, 3, w.box.booted())
}

func TestAWorkerThatStopsMidwayLeavesTheOrderToTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	booted := make(chan struct{}, 4)
	w.box.does(func(bool) { booted <- struct{}{} }) // its service OS does not come
	stop := w.run(t, "w1")
	take(t, booted)
	stop()
	w.box.does(func(bool) {
		token, _ := w.script(t, "52-54-00-00-00-01")
		_, _ = w.enroll(t, token, newKey(t))
	})
	w.run(t, "w2")
	require.Nil(t, w.await(t, w.first(t)))
	require.Equal(t, power.StageService, w.stage(t))
}

func TestALeasedMachineIsNotRecalledByHand(t *testing.T) {
	t.Parallel()
	w := settled(t)
	_, err := w.power.Recall(t.Context(), w.node)
	require.NoError(t, err)
	w.tenancy(t, "active")
	_, err = w.power.Recall(t.Context(), w.node)
	require.Equal(t, "machine-leased", fault.CodeOf(err))
	_, err = w.power.Recall(t.Context(), ids.Make[ids.Node]())
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestAMachineThatIsNotDescribedProperlyIsRefusedWithEveryDefect(t *testing.T) {
	t.Parallel()
	w := settled(t)
	_, _, err := w.power.Register(t.Context(), power.Registration{URL: "http://u:p@bmc", Pin: []byte{1}, MACs: []string{"x"}, AccessPort: -1})
	for _, field := range []string{"/url", "/user", "/certificate_sha256", "/macs", "/access_port"} {
		require.ErrorContains(t, err, field)
	}
	var sealed []byte
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT bmc_secret FROM machine WHERE node_id = $1", w.node).Scan(&sealed))
	require.NotContains(t, string(sealed), "secret", "the password is not in the database")
}
