package httpapi

// Leases is what is rented.
type Leases struct{}
