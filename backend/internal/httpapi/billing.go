package httpapi

// Billing is balance, usage, invoices, payments.
type Billing struct{}
