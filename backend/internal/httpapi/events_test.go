package httpapi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/courier"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/webhook"
)

// newEvents is the area of events on the world's database, as strict as in production. No courier runs.
func newEvents(w *world) httpapi.Events {
	return httpapi.Events{Webhooks: webhook.New(w.db, postgres.NewWebhooks(w.db), newVault(w), audit.New(postgres.NewAuditEvents(w.db), w.clock), nil, w.clock, false)}
}

func newVault(w *world) *keys.Vault {
	vault, err := keys.NewVault(make([]byte, 32))
	require.NoError(w.t, err)
	return vault
}

// deliverEvents is one round of a courier, which reaches nobody: names that end in .test resolve to nothing.
func (w *world) deliverEvents() {
	w.t.Helper()
	c := &webhook.Courier{
		Tx: w.db, Rounds: postgres.NewWebhooks(w.db), Sender: courier.New(w.clock, false), Vault: newVault(w), Audit: audit.New(postgres.NewAuditEvents(w.db), w.clock),
		Notices: postgres.NewOutbox(w.db), Clock: w.clock, Log: slog.New(slog.DiscardHandler),
	}
	require.NoError(w.t, c.Number(w.t.Context()))
	require.NoError(w.t, c.Deliver(w.t.Context()))
}

// hooks are good writes of webhook endpoints.
func (m *matrix) hooks() map[string]write {
	made := func() string {
		return "/v1/webhook-endpoints/" + m.ada.do(http.MethodPost, "/v1/webhook-endpoints", map[string]any{"url": "https://acme.test/"}).member("id")
	}
	return map[string]write{
		"createWebhookEndpoint": {
			who: m.ada, path: "/v1/webhook-endpoints", body: map[string]any{"url": "https://acme.test/1"}, other: map[string]any{"url": "https://acme.test/2"},
		},
		"updateWebhookEndpoint": {who: m.ada, path: made(), ifMatch: `"1"`, body: map[string]any{"enabled": false}, other: map[string]any{"enabled": true}},
		"deleteWebhookEndpoint": {who: m.ada, path: made()},
		"rotateWebhookSecret":   {who: m.ada, path: made() + "/secret-rotations", body: map[string]any{}, other: map[string]any{"overlap_seconds": 5}},
		"testWebhookEndpoint":   {who: m.ada, path: made() + "/tests"},
		"replayWebhookDeliveries": {
			who: m.ada, path: made() + "/replays", body: map[string]any{"since": "2026-03-01T00:00:00Z"}, other: map[string]any{"since": "2026-02-01T00:00:00Z"},
		},
	}
}

func TestAWebhookIsMadeTestedLookedAtReplayedAndTakenAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	made := ada.do(http.MethodPost, "/v1/webhook-endpoints", map[string]any{"url": "https://acme.test/hook", "event_types": []string{"lease.*"}})
	require.Equal(t, http.StatusCreated, made.status, made.text())
	require.Regexp(t, `^whsec_[A-Za-z0-9+/]{43}=$`, made.member("secret"))
	path := "/v1/webhook-endpoints/" + made.member("id")
	require.NotContains(t, ada.do(http.MethodGet, path, nil).text(), "whsec_")

	require.Equal(t, http.StatusAccepted, ada.do(http.MethodPost, path+"/tests", nil).status)
	w.deliverEvents()
	var log struct {
		Items []struct {
			ID        string `json:"id"`
			State     string `json:"state"`
			EventType string `json:"event_type"`
		} `json:"items"`
	}
	list := ada.do(http.MethodGet, path+"/deliveries", nil)
	require.NoError(t, json.Unmarshal(list.body, &log))
	require.Len(t, log.Items, 1, list.text())
	require.Equal(t, []string{"pending", "webhook.ping"}, []string{log.Items[0].State, log.Items[0].EventType})
	require.Contains(t, list.text(), "the name cannot be resolved")
	one := ada.do(http.MethodGet, path+"/deliveries/"+log.Items[0].ID, nil)
	require.Contains(t, one.text(), `"attempts":[{"at":`)
	require.Contains(t, one.text(), `"webhook_endpoint_id":"`+made.member("id"))
	again := ada.do(http.MethodPost, path+"/replays", map[string]any{"delivery_ids": []string{log.Items[0].ID}})
	require.JSONEq(t, `{"deliveries": 1}`, again.text())
	requireProblem(t, ada.do(http.MethodPost, path+"/replays", map[string]any{}), http.StatusUnprocessableEntity, "invalid-request")

	require.Equal(t, http.StatusNoContent, ada.do(http.MethodDelete, path, nil).status)
	requireProblem(t, ada.do(http.MethodGet, path, nil), http.StatusNotFound, "not-found")
}

func TestAWebhookToOurOwnNetworkIsRefused(t *testing.T) {
	t.Parallel()
	ada := newWorld(t).logIn(0)
	for _, url := range []string{"http://acme.test/", "https://127.0.0.1/", "https://[::ffff:10.0.0.1]/", "https://169.254.169.254/latest/meta-data/", "https://u:p@acme.test/"} {
		got := ada.do(http.MethodPost, "/v1/webhook-endpoints", map[string]any{"url": url})
		requireProblem(t, got, http.StatusUnprocessableEntity, "invalid-request")
		require.Contains(t, got.text(), `"pointer":"/url"`)
	}
}

func TestTheFeedHasALeasesEventsInOrderForItsOrganizationOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, id, _ := w.lease(0)
	subject, err := ids.Read[ids.Lease](id)
	require.NoError(t, err)
	require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error {
		for _, kind := range []lease.EventType{lease.EventBooked, lease.EventProvisioning, lease.EventActive} {
			if _, err := postgres.NewLeases(w.db).AppendEvent(ctx, lease.Event{Lease: subject, Type: kind, At: w.clock.Now()}); err != nil {
				return err
			}
		}
		return nil
	}))
	w.deliverEvents()
	var feed struct {
		Items []struct {
			Type     string `json:"type"`
			Sequence int64  `json:"sequence"`
			Subject  string `json:"subject"`
			Version  int    `json:"version"`
		} `json:"items"`
		LastSequence int64 `json:"last_sequence"`
	}
	ada := w.logIn(0)
	got := ada.do(http.MethodGet, "/v1/events?after=1", nil)
	require.NoError(t, json.Unmarshal(got.body, &feed))
	require.Len(t, feed.Items, 2, got.text())
	require.Equal(t, []any{"lease.provisioning", int64(2), id, 1}, []any{feed.Items[0].Type, feed.Items[0].Sequence, feed.Items[0].Subject, feed.Items[0].Version})
	require.EqualValues(t, 3, feed.LastSequence)
	require.JSONEq(t, `{"items": [], "last_sequence": 3}`, ada.do(http.MethodGet, "/v1/events?after=-1&wait=30s", nil).text())
	require.JSONEq(t, `{"items": [], "last_sequence": 0}`, w.logIn(1).do(http.MethodGet, "/v1/events", nil).text())
}
