package httpapi

import (
	"context"
	"slices"
	"strings"
)

// Operation is what a test of every route needs to know of it.
type Operation struct {
	ID, Method, Path, Scope                        string
	Public, Operator, HasBody, Idempotent, IfMatch bool
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
			HasBody: op.hasBody, Idempotent: op.idempotent, IfMatch: op.ifMatch,
		})
	}
	slices.SortFunc(out, func(a, b Operation) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}
