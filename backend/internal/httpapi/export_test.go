package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// Operation is what a test of every route needs to know of it.
type Operation struct {
	ID, Method, Path, Scope                                  string
	Public, Operator, Provider, HasBody, Idempotent, IfMatch bool
	MaxBody                                                  int64
}

// ContractOperations lists the contract's operations by id.
func ContractOperations(ctx context.Context) ([]Operation, error) {
	document, err := loadContract(ctx)
	if err != nil {
		return nil, err
	}
	all, err := newOperations(document, permissions())
	if err != nil {
		return nil, err
	}
	var out []Operation
	for _, op := range all {
		out = append(out, Operation{
			ID: op.id, Method: op.route.Method, Path: op.path, Scope: op.permission.scope, Public: op.permission.public, Operator: op.permission.operator,
			Provider: op.permission.provider, HasBody: op.hasBody, Idempotent: op.idempotent, IfMatch: op.ifMatch, MaxBody: op.maxBody,
		})
	}
	slices.SortFunc(out, func(a, b Operation) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// contractRouter finds operations for CheckAnswer.
var contractRouter = sync.OnceValues(func() (routers.Router, error) {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.FileBodyDecoder)
	document, err := loadContract(context.Background()) //nolint:usetesting,forbidigo // one for all tests
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(document)
})

// CheckAnswer holds an answer against the contract: a handler that answers what it does not promise is a defect. Paths that are no
// part of the contract pass.
func CheckAnswer(request *http.Request, status int, header http.Header, body []byte) error {
	router, err := contractRouter()
	if err != nil {
		return err
	}
	bare := request.Clone(request.Context())
	bare.URL.Scheme, bare.URL.Host, bare.Host = "", "", ""
	route, parameters, err := router.FindRoute(bare)
	if err != nil {
		return nil //nolint:nilerr // a page, or nothing
	}
	err = openapi3filter.ValidateResponse(request.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: request, PathParams: parameters, Route: route},
		Status:                 status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
	if err != nil {
		return fmt.Errorf("%s %s answered %d, against the contract: %w", request.Method, route.Path, status, err)
	}
	return nil
}
