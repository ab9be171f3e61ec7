package httpapi

// Identity is sessions, projects and keys.
type Identity struct{}
