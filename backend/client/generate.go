// Package client calls the HTTP API. It is generated from the same openapi.yaml that the server is generated from.
package client

//go:generate go tool -modfile=../../tools/tools.mod oapi-codegen -config oapi-codegen.yaml ../internal/httpapi/openapi.yaml
