package httpapi

// Quotes is firm offers.
type Quotes struct{}
