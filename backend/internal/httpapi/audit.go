package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// AuditLog is what is read of the audit log.
type AuditLog struct {
	Events *audit.Reader
}

// ListAuditEvents reads the organization's log, newest first.
func (a AuditLog) ListAuditEvents(ctx context.Context, r api.ListAuditEventsRequestObject) (api.ListAuditEventsResponseObject, error) {
	p := r.Params
	body, link, err := a.list(ctx, p.Limit, p.Cursor, audit.Filter{
		Actor: orZero(p.Actor), Action: orZero(p.Action), Target: orZero(p.Target), RequestID: orZero(p.RequestID),
		Since: orZero(p.Since).UTC(), Until: orZero(p.Until).UTC(),
	})
	if err != nil {
		return nil, err
	}
	return api.ListAuditEvents200JSONResponse{Body: body, Headers: api.ListAuditEvents200ResponseHeaders{Link: link}}, nil
}

// AdminListAuditEvents reads everybody's log.
func (a AuditLog) AdminListAuditEvents(ctx context.Context, r api.AdminListAuditEventsRequestObject) (api.AdminListAuditEventsResponseObject, error) {
	p := r.Params
	filter := audit.Filter{
		Everybody: p.OrganizationID == nil, Actor: orZero(p.Actor), Action: orZero(p.Action), Target: orZero(p.Target), RequestID: orZero(p.RequestID),
		Since: orZero(p.Since).UTC(), Until: orZero(p.Until).UTC(),
	}
	var err error
	if p.OrganizationID != nil {
		if filter.Org, err = chainNamed(*p.OrganizationID); err != nil {
			return nil, err
		}
	}
	body, link, err := a.list(ctx, p.Limit, p.Cursor, filter)
	if err != nil {
		return nil, err
	}
	return api.AdminListAuditEvents200JSONResponse{Body: body, Headers: api.AdminListAuditEvents200ResponseHeaders{Link: link}}, nil
}

// chainNamed reads an organization's id, or the word for the platform's own chain.
func chainNamed(name string) (ids.Org, error) {
	if name == "platform" {
		return ids.Org{}, nil
	}
	org, err := ids.Read[ids.Org](name)
	if err != nil || org.IsZero() {
		return ids.Org{}, fault.New(fault.Invalid, "invalid-request", "the request has defects").At("/query/organization_id", "is neither an organization's id nor platform")
	}
	return org, nil
}

func (a AuditLog) list(ctx context.Context, limit *int, cursor *string, filter audit.Filter) (api.AuditEventList, *string, error) {
	page, err := pageAfter[ids.Audit](limit, cursor)
	if err != nil {
		return api.AuditEventList{}, nil, err
	}
	filter.After, filter.Limit = page.after, page.limit+1
	found, err := a.Events.List(ctx, filter)
	if err != nil {
		return api.AuditEventList{}, nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(e audit.Event) ids.Audit { return e.ID })
	if err != nil {
		return api.AuditEventList{}, nil, err
	}
	return api.AuditEventList{Items: each(items, newAuditEventView)}, link, nil
}

func newAuditEventView(e audit.Event) api.AuditEvent {
	view := api.AuditEvent{
		ID: e.ID.String(), OrganizationID: orNil(e.Org.String()), At: e.At, Actor: e.Actor, Action: e.Action, Target: e.Target,
		RequestID: orNil(e.RequestID), Source: orNil(e.Source), Seq: orNil(e.Link.Seq), Hash: orNil(e.Link.Hash),
	}
	for _, side := range []struct {
		raw  json.RawMessage
		view **map[string]any
	}{{e.Before, &view.Before}, {e.After, &view.After}} {
		if len(side.raw) == 0 {
			continue
		}
		var members map[string]any
		if json.Unmarshal(side.raw, &members) != nil { // no object
			members = map[string]any{"value": side.raw}
		}
		*side.view = &members
	}
	return view
}

// ExportAuditEvents streams the organization's chain.
func (a AuditLog) ExportAuditEvents(ctx context.Context, r api.ExportAuditEventsRequestObject) (api.ExportAuditEventsResponseObject, error) {
	return auditExport{ctx: ctx, log: a.Events, since: orZero(r.Params.Since).UTC(), until: orZero(r.Params.Until).UTC()}, nil
}

// AdminExportAuditEvents streams one chain.
func (a AuditLog) AdminExportAuditEvents(ctx context.Context, r api.AdminExportAuditEventsRequestObject) (api.AdminExportAuditEventsResponseObject, error) {
	org, err := chainNamed(r.Params.OrganizationID)
	if err != nil {
		return nil, err
	}
	return auditExport{ctx: ctx, log: a.Events, org: org, since: orZero(r.Params.Since).UTC(), until: orZero(r.Params.Until).UTC()}, nil
}

// auditExport is the answer of an export.
type auditExport struct {
	//nolint:containedctx // the answer outlives the handler and lives as long as the request
	ctx          context.Context
	log          *audit.Reader
	org          ids.Org
	since, until time.Time
}

// VisitExportAuditEventsResponse implements the generated answer of exportAuditEvents.
func (x auditExport) VisitExportAuditEventsResponse(w http.ResponseWriter) error { return x.serve(w) }

// VisitAdminExportAuditEventsResponse implements the generated answer of adminExportAuditEvents.
func (x auditExport) VisitAdminExportAuditEventsResponse(w http.ResponseWriter) error {
	return x.serve(w)
}

// exportStalls is how long a client may take over one part.
const exportStalls = time.Minute

// serve writes part after part. When something fails in between the connection is cut, so that nobody takes a part for the whole.
func (x auditExport) serve(w http.ResponseWriter) error {
	control := http.NewResponseController(w)
	header := w.Header()
	header.Set("Content-Type", "application/x-ndjson")
	header.Set("Content-Disposition", attachment("audit.jsonl"))
	header.Set("X-Accel-Buffering", "no")
	began := false
	err := x.log.Export(x.ctx, x.org, x.since, x.until, func(events []audit.Event) error {
		if err := control.SetWriteDeadline(time.Now().Add(exportStalls)); err != nil && !errors.Is(err, errors.ErrUnsupported) { //nolint:forbidigo // the connection's own clock
			return fmt.Errorf("move write deadline: %w", err)
		}
		began = true
		return writeLines(w, events)
	})
	if err == nil || !began {
		return err
	}
	if x.ctx.Err() == nil {
		panic(http.ErrAbortHandler) //nolint:forbidigo // what net/http cuts the connection by
	}
	return nil
}

func writeLines(w http.ResponseWriter, events []audit.Event) error {
	for _, e := range events {
		line, err := e.Line()
		if err != nil {
			return err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("write audit event: %w", err)
		}
	}
	return nil
}
