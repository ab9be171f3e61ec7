package httpapi

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// CreateLease books a quote.
func (a Leases) CreateLease(ctx context.Context, r api.CreateLeaseRequestObject) (api.CreateLeaseResponseObject, error) {
	quote, err := idFromBody[ids.Quote](r.Body.QuoteID, "/quote_id")
	if err != nil {
		return nil, err
	}
	in := booking.BookInput{Quote: quote, Name: orZero(r.Body.Name), UserData: orZero(r.Body.UserData), Tags: orZero(r.Body.Tags)}
	for i, text := range r.Body.SSHKeyIds {
		key, err := idFromBody[ids.SSHKey](text, fmt.Sprintf("/ssh_key_ids/%d", i))
		if err != nil {
			return nil, err
		}
		in.SSHKeys = append(in.SSHKeys, key)
	}
	made, err := a.Sales.Book(ctx, in)
	if err != nil {
		return nil, err
	}
	details, err := a.Leases.Get(ctx, made.ID)
	if err != nil {
		return nil, err
	}
	return api.CreateLease201JSONResponse{Body: newLeaseView(details), Headers: api.CreateLease201ResponseHeaders{ETag: etag(details.Version)}}, nil
}

// UpdateLease renames and tags.
func (a Leases) UpdateLease(ctx context.Context, r api.UpdateLeaseRequestObject) (api.UpdateLeaseResponseObject, error) {
	id, version, err := leaseAndVersion(r.LeaseID, r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	if err := a.Sales.Describe(ctx, id, version, booking.Description{Name: r.Body.Name, Tags: (*map[string]string)(r.Body.Tags)}); err != nil {
		return nil, err
	}
	details, err := a.Leases.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.UpdateLease200JSONResponse{Body: newLeaseView(details), Headers: api.UpdateLease200ResponseHeaders{ETag: etag(details.Version)}}, nil
}

// ExtendLease moves the end. With dry_run the middleware takes it all back, and only the quote remains.
func (a Leases) ExtendLease(ctx context.Context, r api.ExtendLeaseRequestObject) (api.ExtendLeaseResponseObject, error) {
	id, version, err := leaseAndVersion(r.LeaseID, r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	made, err := a.Sales.Extend(ctx, id, version, r.Body.End)
	if err != nil {
		return nil, err
	}
	return api.ExtendLease201JSONResponse{
		Body: api.Extension{
			LeaseID: id.String(), Segment: made.Segment.Seq, Window: newWindowView(made.Segment.Start, made.Segment.End),
			Rate: newRateView(made.Segment.Rate, made.Segment.Terms.RatedPer), Subtotal: newMoneyView(made.Subtotal), Tax: newMoneyView(made.Tax),
			Total: newMoneyView(made.Total()), Applied: !orZero(r.Params.DryRun),
		},
		Headers: api.ExtendLease201ResponseHeaders{ETag: etag(made.Lease.Version)},
	}, nil
}

// CancelLease cancels before the start, or ends early. With dry_run only the quote remains.
func (a Leases) CancelLease(ctx context.Context, r api.CancelLeaseRequestObject) (api.CancelLeaseResponseObject, error) {
	id, version, err := leaseAndVersion(r.LeaseID, r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	made, err := a.Sales.Cancel(ctx, id, version)
	if err != nil {
		return nil, err
	}
	kind := api.CancellationKind("cancel")
	if made.Terminates {
		kind = "terminate"
	}
	return api.CancelLease202JSONResponse{
		Body: api.Cancellation{
			LeaseID: id.String(), Kind: kind, EffectiveAt: made.EffectiveAt, Refund: newMoneyView(made.Refund), Fee: newMoneyView(made.Fee),
			Applied: !orZero(r.Params.DryRun),
		},
		Headers: api.CancelLease202ResponseHeaders{ETag: etag(made.Lease.Version)},
	}, nil
}

// RequestAttestation asks for a proof of isolation while the lease runs.
func (a Leases) RequestAttestation(ctx context.Context, r api.RequestAttestationRequestObject) (api.RequestAttestationResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	if err := a.boundProofs(ctx, id); err != nil {
		return nil, err
	}
	number, err := a.Sales.AskProof(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.RequestAttestation202JSONResponse{LeaseID: id.String(), Request: number}, nil
}

func (a Leases) boundProofs(ctx context.Context, id ids.Lease) error {
	if a.Proofs == nil {
		return nil
	}
	verdict, err := a.Proofs.Allow(ctx, id.String())
	if err != nil || verdict.Allowed {
		return err
	}
	return fault.New(fault.Exhausted, "rate-limited", "too many proofs of this lease, try again in %d s", seconds(verdict.RetryAfter)).
		With(factRetryAfter, seconds(verdict.RetryAfter))
}

func leaseAndVersion(path string, match *string) (ids.Lease, int64, error) {
	id, err := idFromPath[ids.Lease](path)
	if err != nil {
		return id, 0, err
	}
	version, err := ifMatch(match)
	return id, version, err
}
