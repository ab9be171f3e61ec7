package httpapi

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/webhook"
)

// ListWebhookDeliveries reads the delivery log, the newest first.
func (e Events) ListWebhookDeliveries(ctx context.Context, r api.ListWebhookDeliveriesRequestObject) (api.ListWebhookDeliveriesResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.Delivery](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := e.Webhooks.Deliveries(ctx, webhook.DeliveryFilter{
		Endpoint: id, State: webhook.State(orZero(r.Params.State)), Type: orZero(r.Params.Type), After: page.after, Limit: page.limit + 1,
	})
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(d webhook.Delivery) ids.Delivery { return d.ID })
	if err != nil {
		return nil, err
	}
	return api.ListWebhookDeliveries200JSONResponse{
		Body: api.WebhookDeliveryList{Items: each(items, newDeliveryView)}, Headers: api.ListWebhookDeliveries200ResponseHeaders{Link: link},
	}, nil
}

func newDeliveryView(d webhook.Delivery) api.WebhookDelivery {
	view := api.WebhookDelivery{
		ID: d.ID.String(), EventID: d.Event.ID.String(), EventType: d.Event.Type, Sequence: d.Event.Sequence, State: api.WebhookDeliveryState(d.State),
		Tries: d.Tries, CreatedAt: d.CreatedAt, FinishedAt: orNil(d.FinishedAt),
	}
	if d.State == webhook.Pending {
		view.NextAt = orNil(d.NextAt)
	}
	if d.Last.Number != 0 {
		view.LastAttempt = new(newAttemptView(d.Last))
	}
	return view
}

func newAttemptView(a webhook.Attempt) api.WebhookAttempt {
	return api.WebhookAttempt{Number: a.Number, At: a.At, TookMs: a.TookMS, Status: orNil(a.Status), Error: orNil(a.Error), Body: orNil(a.Body)}
}

// GetWebhookDelivery reads a delivery with its event and attempts.
func (e Events) GetWebhookDelivery(ctx context.Context, r api.GetWebhookDeliveryRequestObject) (api.GetWebhookDeliveryResponseObject, error) {
	endpoint, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	id, err := idFromPath[ids.Delivery](r.DeliveryID)
	if err != nil {
		return nil, err
	}
	found, attempts, err := e.Webhooks.Delivery(ctx, endpoint, id)
	if err != nil {
		return nil, err
	}
	event, err := newEventView(found.Event)
	if err != nil {
		return nil, err
	}
	view := newDeliveryView(found)
	view.Event, view.Attempts = &event, new(each(attempts, newAttemptView))
	return api.GetWebhookDelivery200JSONResponse(view), nil
}

// ReplayWebhookDeliveries delivers again.
func (e Events) ReplayWebhookDeliveries(
	ctx context.Context, r api.ReplayWebhookDeliveriesRequestObject,
) (api.ReplayWebhookDeliveriesResponseObject, error) {
	id, err := idFromPath[ids.Webhook](r.WebhookEndpointID)
	if err != nil {
		return nil, err
	}
	in := webhook.ReplayInput{Since: orZero(r.Body.Since).UTC(), Until: orZero(r.Body.Until).UTC(), State: webhook.State(orZero(r.Body.State))}
	for i, text := range orZero(r.Body.DeliveryIds) {
		delivery, err := idFromBody[ids.Delivery](text, fmt.Sprintf("/delivery_ids/%d", i))
		if err != nil {
			return nil, err
		}
		in.Deliveries = append(in.Deliveries, delivery)
	}
	n, err := e.Webhooks.Replay(ctx, id, in)
	if err != nil {
		return nil, err
	}
	return api.ReplayWebhookDeliveries202JSONResponse{Deliveries: n}, nil
}
