package httpapi

import (
	"context"
	_ "embed" // the contract
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
)

//go:embed openapi.yaml
var contract []byte //nolint:gochecknoglobals // an embedded file

// operation is one operation of the contract with what the middleware needs of it.
type operation struct {
	id         string
	path       string // as in the contract
	route      *routers.Route
	permission permission
	hasBody    bool
	idempotent bool  // takes an Idempotency-Key
	ifMatch    bool  // takes If-Match
	streams    bool  // may answer server-sent events
	exports    bool  // answers as many lines as there are
	maxBody    int64 // bytes
	query      []string
	// secrets are JSON members of its answers that a replay leaves out.
	secrets []string
}

// operations finds an operation by "METHOD /gin/:path".
type operations map[string]*operation

// loadContract reads and checks the embedded document.
func loadContract(ctx context.Context) (*openapi3.T, error) {
	loader := openapi3.NewLoader()
	loader.Context = ctx
	document, err := loader.LoadFromData(contract)
	if err != nil {
		return nil, fmt.Errorf("load contract: %w", err)
	}
	if err := document.Validate(ctx); err != nil {
		return nil, fmt.Errorf("validate contract: %w", err)
	}
	return document, nil
}

// newOperations joins the contract with the table of permissions; an operation without a row, and a row without an operation, is an
// error at start.
func newOperations(document *openapi3.T, rows map[string]permission) (operations, error) {
	all := operations{}
	seen := map[string]bool{}
	for path, item := range document.Paths.Map() {
		for method, op := range item.Operations() {
			row, ok := rows[op.OperationID]
			if !ok {
				return nil, fmt.Errorf("operation %s has no row in the table of permissions", op.OperationID)
			}
			if public := op.Security != nil && len(*op.Security) == 0; public != row.public {
				return nil, fmt.Errorf("operation %s: contract and table of permissions disagree on whether it is public", op.OperationID)
			}
			seen[op.OperationID] = true
			all[method+" "+ginPath(path)] = newOperation(document, path, method, item, op, row)
		}
	}
	for id := range rows {
		if !seen[id] {
			return nil, fmt.Errorf("the table of permissions has a row for %s, which is not in the contract", id)
		}
	}
	return all, nil
}

func newOperation(document *openapi3.T, path, method string, item *openapi3.PathItem, op *openapi3.Operation, row permission) *operation {
	o := &operation{
		id: op.OperationID, path: path, permission: row, hasBody: op.RequestBody != nil, maxBody: maxBodyOf(op),
		route: &routers.Route{Spec: document, Path: path, PathItem: item, Method: method, Operation: op},
	}
	o.idempotent = op.Parameters.GetByInAndName(openapi3.ParameterInHeader, headerIdempotencyKey) != nil
	o.ifMatch = op.Parameters.GetByInAndName(openapi3.ParameterInHeader, "If-Match") != nil
	for _, parameter := range op.Parameters {
		if parameter.Value.In == openapi3.ParameterInQuery {
			o.query = append(o.query, parameter.Value.Name)
		}
	}
	for _, response := range op.Responses.Map() {
		if response.Value.Content.Get("text/event-stream") != nil {
			o.streams = true
		}
		if response.Value.Content.Get("application/x-ndjson") != nil {
			o.exports = true
		}
		if body := response.Value.Content["application/json"]; body != nil && body.Schema != nil {
			o.secrets = append(o.secrets, secretMembers(body.Schema.Value)...)
		}
	}
	return o
}

// maxBodyOf is what the contract's x-max-body-bytes lets a request have, for whole files; else what every operation's may have.
func maxBodyOf(op *openapi3.Operation) int64 {
	if most, ok := op.Extensions["x-max-body-bytes"].(float64); ok {
		return int64(most)
	}
	return maxBody
}

// secretMembers are the members that the contract marks with x-secret.
func secretMembers(schema *openapi3.Schema) []string {
	var names []string
	for name, member := range schema.Properties {
		if secret, _ := member.Value.Extensions["x-secret"].(bool); secret {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mutates reports whether the method may change something.
func mutates(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

// ginPath turns /v1/leases/{lease_id} into /v1/leases/:lease_id.
func ginPath(path string) string {
	return regexp.MustCompile(`\{([^}]+)\}`).ReplaceAllString(path, ":$1")
}
