package httpapi

// System is health and public keys.
type System struct{}
