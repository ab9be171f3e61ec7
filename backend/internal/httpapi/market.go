package httpapi

// Market is the catalogue, prices, and availability.
type Market struct{}
