// Package api is the generated half of the HTTP API: the models and the strict server interface of openapi.yaml. Nothing in it
// is written by hand but this comment; handlers are methods of httpapi's areas.
package api

//go:generate go tool -modfile=../../../../tools/tools.mod oapi-codegen -config oapi-codegen.yaml ../openapi.yaml
