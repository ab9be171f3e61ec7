package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/webhook"
)

// Events is the feed of events and the webhooks that bring them.
type Events struct {
	Webhooks *webhook.Service
}

// ListEvents reads the feed; with wait, as soon as there is something.
func (e Events) ListEvents(ctx context.Context, r api.ListEventsRequestObject) (api.ListEventsResponseObject, error) {
	wait, err := waitFor(r.Params.Wait)
	if err != nil {
		return nil, err
	}
	after, list := orZero(r.Params.After), api.EventList{Items: []api.Event{}}
	if after >= 0 {
		events, err := e.Webhooks.Events(ctx, after, pageLimit(r.Params.Limit), wait)
		if err != nil {
			return nil, err
		}
		if list.Items, err = eachOrError(events, newEventView); err != nil {
			return nil, err
		}
		if n := len(events); n > 0 {
			list.LastSequence = events[n-1].Sequence
			return api.ListEvents200JSONResponse(list), nil
		}
	}
	if list.LastSequence, err = e.Webhooks.LastEvent(ctx); err != nil {
		return nil, err
	}
	return api.ListEvents200JSONResponse(list), nil
}

func newEventView(e webhook.Event) (api.Event, error) {
	p := e.Payload()
	view := api.Event{
		ID: p.ID, Type: p.Type, Version: p.Version, Timestamp: p.Timestamp, OrganizationID: p.Organization, Sequence: p.Sequence,
		Subject: orNil(p.Subject), SubjectSequence: orNil(p.SubjectSequence),
	}
	if err := json.Unmarshal(p.Data, &view.Data); err != nil {
		return api.Event{}, fmt.Errorf("read event %s: %w", p.ID, err)
	}
	return view, nil
}

// eachOrError is each for views that can fail.
func eachOrError[In, Out any](in []In, view func(In) (Out, error)) ([]Out, error) {
	out := make([]Out, len(in))
	for i, v := range in {
		var err error
		if out[i], err = view(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ListWebhookEndpoints lists endpoints, the newest first.
func (e Events) ListWebhookEndpoints(ctx context.Context, r api.ListWebhookEndpointsRequestObject) (api.ListWebhookEndpointsResponseObject, error) {
	page, err := pageAfter[ids.Webhook](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := e.Webhooks.Endpoints(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(e webhook.Endpoint) ids.Webhook { return e.ID })
	if err != nil {
		return nil, err
	}
	return api.ListWebhookEndpoints200JSONResponse{
		Body: api.WebhookEndpointList{Items: each(items, newEndpointView)}, Headers: api.ListWebhookEndpoints200ResponseHeaders{Link: link},
	}, nil
}

func newEndpointView(e webhook.Endpoint) api.WebhookEndpoint {
	view := api.WebhookEndpoint{
		ID: e.ID.String(), URL: e.URL, Description: e.Description, EventTypes: append([]string{}, e.Types...), Enabled: e.Disabled == webhook.Enabled,
		DisabledAt: orNil(e.DisabledAt), FailingSince: orNil(e.FailingSince), PreviousSecretValidUntil: orNil(e.PreviousUntil),
		CreatedBy: e.CreatedBy, CreatedAt: e.CreatedAt,
	}
	if e.Disabled != webhook.Enabled {
		view.DisabledReason = orNil(api.WebhookEndpointDisabledReason(e.Disabled))
	}
	return view
}

func withSecret(e webhook.Endpoint, secret string) api.WebhookEndpoint {
	view := newEndpointView(e)
	view.Secret = &secret
	return view
}

// CreateWebhookEndpoint makes an endpoint.
func (e Events) CreateWebhookEndpoint(ctx context.Context, r api.CreateWebhookEndpointRequestObject) (api.CreateWebhookEndpointResponseObject, error) {
	made, secret, err := e.Webhooks.Create(ctx, webhook.EndpointInput{
		URL: r.Body.URL, Description: orZero(r.Body.Description), Types: orZero(r.Body.EventTypes),
	})
	if err != nil {
		return nil, err
	}
	return api.CreateWebhookEndpoint201JSONResponse{
		Body: withSecret(made, secret), Headers: api.CreateWebhookEndpoint201ResponseHeaders{ETag: etag(made.Version)},
	}, nil
}

// GetWebhookEndpoint reads an endpoint.
func (e Events) GetWebhookEndpoint(ctx context.Context, r api.GetWebhookEndpointRequestObject) (api.GetWebhookEndpointResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	found, err := e.Webhooks.Endpoint(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetWebhookEndpoint200JSONResponse{Body: newEndpointView(found), Headers: api.GetWebhookEndpoint200ResponseHeaders{ETag: etag(found.Version)}}, nil
}

// UpdateWebhookEndpoint changes an endpoint.
func (e Events) UpdateWebhookEndpoint(ctx context.Context, r api.UpdateWebhookEndpointRequestObject) (api.UpdateWebhookEndpointResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	after, err := e.Webhooks.Update(ctx, id, version, webhook.EndpointChange{
		URL: r.Body.URL, Description: r.Body.Description, Types: r.Body.EventTypes, Enabled: r.Body.Enabled,
	})
	if err != nil {
		return nil, err
	}
	return api.UpdateWebhookEndpoint200JSONResponse{
		Body: newEndpointView(after), Headers: api.UpdateWebhookEndpoint200ResponseHeaders{ETag: etag(after.Version)},
	}, nil
}

// DeleteWebhookEndpoint takes an endpoint away.
func (e Events) DeleteWebhookEndpoint(ctx context.Context, r api.DeleteWebhookEndpointRequestObject) (api.DeleteWebhookEndpointResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	if err := e.Webhooks.Delete(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteWebhookEndpoint204Response{}, nil
}

// RotateWebhookSecret gives an endpoint a new secret.
func (e Events) RotateWebhookSecret(ctx context.Context, r api.RotateWebhookSecretRequestObject) (api.RotateWebhookSecretResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	var overlap *time.Duration
	if r.Body.OverlapSeconds != nil {
		overlap = new(time.Duration(*r.Body.OverlapSeconds) * time.Second)
	}
	after, secret, err := e.Webhooks.Rotate(ctx, id, overlap)
	if err != nil {
		return nil, err
	}
	return api.RotateWebhookSecret201JSONResponse{
		Body: withSecret(after, secret), Headers: api.RotateWebhookSecret201ResponseHeaders{ETag: etag(after.Version)},
	}, nil
}

// TestWebhookEndpoint has a ping sent.
func (e Events) TestWebhookEndpoint(ctx context.Context, r api.TestWebhookEndpointRequestObject) (api.TestWebhookEndpointResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	event, err := e.Webhooks.Test(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.TestWebhookEndpoint202JSONResponse{EventID: event.ID.String()}, nil
}
