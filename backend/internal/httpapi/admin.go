package httpapi

// Admin is the operator's side.
type Admin struct{}
