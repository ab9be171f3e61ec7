package httpapi

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// Fabrics looks after fabrics as a whole. Package fabric implements it; its faults are NotFound, Invalid and Conflict.
type Fabrics interface {
	Outlook(ctx context.Context, id ids.Fabric) (fabric.Outlook, error)
	AskAudit(ctx context.Context, id ids.Fabric) (time.Time, error)
	Audits(ctx context.Context, id ids.Fabric, limit int) ([]fabric.Audit, error)
	Dismiss(ctx context.Context, id ids.Fabric, port protocol.GUID, reason string) error
	Override(ctx context.Context, id ids.Fabric, reason string) error
	Reserve(ctx context.Context, id ids.Fabric, keys []protocol.PKey) error
	Manage(ctx context.Context, id ids.Fabric, ports []protocol.GUID) error
	Range(ctx context.Context, id ids.Fabric, low, high protocol.PKey) error
}

// auditsShown is how many audits the list has.
const auditsShown = 50

// AdminListFabricAudits lists a fabric's latest audits.
func (a Admin) AdminListFabricAudits(ctx context.Context, r api.AdminListFabricAuditsRequestObject) (api.AdminListFabricAuditsResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	audits, err := a.Fabrics.Audits(ctx, id, auditsShown)
	if err != nil {
		return nil, err
	}
	return api.AdminListFabricAudits200JSONResponse{Items: each(audits, newFabricAuditView)}, nil
}

// AdminAuditFabric has every port read.
func (a Admin) AdminAuditFabric(ctx context.Context, r api.AdminAuditFabricRequestObject) (api.AdminAuditFabricResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	at, err := a.Fabrics.AskAudit(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminAuditFabric202JSONResponse{AskedAt: at}, nil
}

// AdminDismissDrift ends what is known to be wrong with a port.
func (a Admin) AdminDismissDrift(ctx context.Context, r api.AdminDismissDriftRequestObject) (api.AdminDismissDriftResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	var port protocol.GUID
	if r.Body.PortGUID != "" {
		if err := port.UnmarshalText([]byte(r.Body.PortGUID)); err != nil {
			return nil, fault.New(fault.Invalid, "port-guid", "%q is not a port's GUID", r.Body.PortGUID)
		}
	}
	if err := a.Fabrics.Dismiss(ctx, id, port, r.Body.Reason); err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminDismissDrift200JSONResponse(newFabricIsolationView(outlook)), nil
}

// AdminOverridePosture lets a fabric's posture pass, or does so no longer.
func (a Admin) AdminOverridePosture(ctx context.Context, r api.AdminOverridePostureRequestObject) (api.AdminOverridePostureResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	if err := a.Fabrics.Override(ctx, id, r.Body.Reason); err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminOverridePosture200JSONResponse(newFabricIsolationView(outlook)), nil
}

// AdminReservePKeys keeps keys from leases.
func (a Admin) AdminReservePKeys(ctx context.Context, r api.AdminReservePKeysRequestObject) (api.AdminReservePKeysResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	keys := make([]protocol.PKey, len(r.Body.Pkeys))
	for i, text := range r.Body.Pkeys {
		if err := keys[i].UnmarshalText([]byte(text)); err != nil {
			return nil, fault.New(fault.Invalid, "reserved-keys", "%q is not a partition key", text)
		}
	}
	if err := a.Fabrics.Reserve(ctx, id, keys); err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminReservePKeys200JSONResponse(newFabricIsolationView(outlook)), nil
}

// AdminSetPKeyRange says which keys are ours.
func (a Admin) AdminSetPKeyRange(ctx context.Context, r api.AdminSetPKeyRangeRequestObject) (api.AdminSetPKeyRangeResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	var low, high protocol.PKey
	if low.UnmarshalText([]byte(r.Body.Low)) != nil || high.UnmarshalText([]byte(r.Body.High)) != nil {
		return nil, fault.New(fault.Invalid, "managed-range", "%q to %q is not a range of partition keys", r.Body.Low, r.Body.High)
	}
	if err := a.Fabrics.Range(ctx, id, low, high); err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminSetPKeyRange200JSONResponse(newFabricIsolationView(outlook)), nil
}

// AdminNameManagers says where managers run.
func (a Admin) AdminNameManagers(ctx context.Context, r api.AdminNameManagersRequestObject) (api.AdminNameManagersResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	ports := make([]protocol.GUID, len(r.Body.PortGuids))
	for i, text := range r.Body.PortGuids {
		if err := ports[i].UnmarshalText([]byte(text)); err != nil {
			return nil, fault.New(fault.Invalid, "manager-ports", "%q is not a port's GUID", text)
		}
	}
	if err := a.Fabrics.Manage(ctx, id, ports); err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.AdminNameManagers200JSONResponse(newFabricIsolationView(outlook)), nil
}

func newFabricIsolationView(o fabric.Outlook) api.FabricIsolation {
	return api.FabricIsolation{
		PostureOverride: orNil(o.Override), Barred: orNil(o.Barred), Open: orNil(o.Open), ReservedPkeys: each(o.Reserved, protocol.PKey.String),
		ManagedLow: o.Low.String(), ManagedHigh: o.High.String(), AuditDueAt: orNil(o.AuditDueAt), ManagerPortGuids: each(o.Managers, protocol.GUID.String),
	}
}

func newFabricAuditView(a fabric.Audit) api.FabricAudit {
	return api.FabricAudit{
		ID: a.Operation.String(), AskedBy: a.AskedBy, AskedAt: a.AskedAt, EndedAt: a.EndedAt, Verdict: api.FabricAuditVerdict(a.Verdict), Ports: a.Ports,
		Clean: a.Clean, Deviating: a.Deviating, Unreadable: a.Unreadable, Strangers: a.Strangers, ForeignPkeys: each(a.Foreign, protocol.PKey.String),
		Detail: orNil(a.Detail),
	}
}
