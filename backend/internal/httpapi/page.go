package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"strconv"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/tenant"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// pageLimit is how many items the client wants: 50 unless told, 200 at most.
func pageLimit(limit *int) int {
	return min(max(orElse(limit, defaultPage), 1), maxPage)
}

// decodeCursor reads a cursor that encodeCursor made into key, the last item's position in the list's stable order; no cursor
// leaves key alone and answers false. A cursor only ever skips: it selects nothing that row-level security hides, so it needs no
// signature, but anything that does not decode is Invalid.
func decodeCursor[K any](cursor *string, key *K) (bool, error) {
	if cursor == nil || *cursor == "" {
		return false, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(*cursor)
	if err == nil {
		err = json.Unmarshal(raw, key)
	}
	if err != nil {
		return false, fault.New(fault.Invalid, "invalid-cursor", "the cursor is not one of ours; start again without it")
	}
	return true, nil
}

// encodeCursor makes the opaque cursor of an item's position.
func encodeCursor[K any](key K) (string, error) {
	raw, err := json.Marshal(key)
	if err != nil {
		return "", fmt.Errorf("encode cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

// nextLink is the Link header of a page: the present request with another cursor (RFC 8288). Ask the store for limit+1 items,
// cut the page with cutPage, and give its last item's key.
func nextLink[K any](ctx context.Context, limit int, last K) (string, error) {
	cursor, err := encodeCursor(last)
	if err != nil {
		return "", err
	}
	here := requestFrom(ctx)
	query := url.Values{}
	maps.Copy(query, here.query)
	query.Set("cursor", cursor)
	query.Set("limit", strconv.Itoa(limit))
	return fmt.Sprintf("<%s?%s>; rel=\"next\"", here.path, query.Encode()), nil
}

// cutPage splits what a store answered to limit+1 into the page and whether there is more.
func cutPage[T any](items []T, limit int) ([]T, bool) {
	if len(items) > limit {
		return items[:limit], true
	}
	return items, false
}

// idPage is a page of a list that is ordered by its items' ids.
type idPage[ID any] struct {
	after ID
	limit int
}

// ahead asks for one item more than the page, which says whether there is a next one.
func (p idPage[ID]) ahead() tenant.Page[ID] {
	return tenant.Page[ID]{After: p.after, Limit: p.limit + 1}
}

func pageAfter[ID any](limit *int, cursor *string) (idPage[ID], error) {
	page := idPage[ID]{limit: pageLimit(limit)}
	_, err := decodeCursor(cursor, &page.after)
	return page, err
}

// cutPageByID cuts what a store answered to ahead, and makes the Link header, nil on the last page.
func cutPageByID[T, ID any](ctx context.Context, found []T, page idPage[ID], id func(T) ID) ([]T, *string, error) {
	items, more := cutPage(found, page.limit)
	if !more {
		return items, nil, nil
	}
	link, err := nextLink(ctx, page.limit, id(items[len(items)-1]))
	if err != nil {
		return nil, nil, err
	}
	return items, &link, nil
}
