package httpapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's template
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gin-gonic/gin"
)

//go:embed docs.html.tmpl
var docsTemplate string

// documents serves the contract as JSON, and as a page that needs no script and nothing from elsewhere.
func documents(engine *gin.Engine, document *openapi3.T) error {
	raw, err := document.MarshalJSON()
	if err != nil {
		return fmt.Errorf("render contract: %w", err)
	}
	page, err := renderDocs(document)
	if err != nil {
		return err
	}
	engine.GET("/openapi.json", func(c *gin.Context) { c.Data(http.StatusOK, "application/json", raw) })
	policy := "default-src 'none'; style-src " + styleHash(page) + "; base-uri 'none'; frame-ancestors 'none'"
	engine.GET("/docs", func(c *gin.Context) {
		c.Header("Content-Security-Policy", policy)
		c.Data(http.StatusOK, "text/html; charset=utf-8", page)
	})
	return nil
}

// styleHash names the page's one style element for its policy, so that no other is let in.
func styleHash(page []byte) string {
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ := bytes.Cut(rest, []byte("</style>"))
	sum := sha256.Sum256(style)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

type docsPage struct {
	Title, Description string
	Tags               []docsTag
	Schemas            []docsSchema
}

type docsTag struct {
	Name, Description string
	Operations        []docsOperation
}

type docsOperation struct {
	ID, Method, Path, Summary, Description, Scope string
	Parameters                                    []docsMember
	Request                                       string // a schema's name
	Responses                                     []docsResponse
}

type docsMember struct {
	Name, In, Type, Link, Description string
	Required                          bool
}

type docsResponse struct{ Status, Description, Schema string }

type docsSchema struct {
	Name, Description, Type string
	Enum                    []any
	Members                 []docsMember
}

func renderDocs(document *openapi3.T) ([]byte, error) {
	parsed, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse docs page: %w", err)
	}
	page := docsPage{Title: document.Info.Title, Description: document.Info.Description}
	for _, tag := range document.Tags {
		page.Tags = append(page.Tags, docsTag{Name: tag.Name, Description: tag.Description, Operations: docsOperations(document, tag.Name)})
	}
	for name, schema := range document.Components.Schemas {
		page.Schemas = append(page.Schemas, newDocsSchema(name, schema.Value))
	}
	slices.SortFunc(page.Schemas, func(a, b docsSchema) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	if err := parsed.Execute(&out, page); err != nil {
		return nil, fmt.Errorf("render docs page: %w", err)
	}
	return out.Bytes(), nil
}

func docsOperations(document *openapi3.T, tag string) []docsOperation {
	var found []docsOperation
	for path, item := range document.Paths.Map() {
		for method, op := range item.Operations() {
			if slices.Contains(op.Tags, tag) {
				found = append(found, newDocsOperation(path, method, op))
			}
		}
	}
	slices.SortFunc(found, func(a, b docsOperation) int {
		return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
	})
	return found
}

func newDocsOperation(path, method string, op *openapi3.Operation) docsOperation {
	view := docsOperation{ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, Description: op.Description}
	switch row := permissions()[op.OperationID]; {
	case row.public:
		view.Scope = "no credential"
	case row.scope == "":
		view.Scope = "any credential"
	case row.provider:
		view.Scope = row.scope + ", of the operator, or of a provider for its own sites"
	case row.operator:
		view.Scope = row.scope + ", of the operator"
	default:
		view.Scope = row.scope
	}
	for _, p := range op.Parameters {
		view.Parameters = append(view.Parameters, newDocsMember(p.Value.Name, p.Value.In, p.Value.Schema, p.Value.Description, p.Value.Required))
	}
	if op.RequestBody != nil {
		if body := op.RequestBody.Value.Content["application/json"]; body != nil {
			view.Request = schemaName(body.Schema)
		}
	}
	for status, response := range op.Responses.Map() {
		one := docsResponse{Status: status}
		if response.Value.Description != nil {
			one.Description = *response.Value.Description
		}
		for _, media := range response.Value.Content {
			if name := schemaName(media.Schema); name != "" {
				one.Schema = name
			}
		}
		view.Responses = append(view.Responses, one)
	}
	slices.SortFunc(view.Responses, func(a, b docsResponse) int { return strings.Compare(a.Status, b.Status) })
	return view
}

func newDocsSchema(name string, schema *openapi3.Schema) docsSchema {
	view := docsSchema{Name: name, Description: schema.Description, Type: typeName(schema), Enum: schema.Enum}
	for member, value := range schema.Properties {
		view.Members = append(view.Members, newDocsMember(member, "", value, value.Value.Description, slices.Contains(schema.Required, member)))
	}
	slices.SortFunc(view.Members, func(a, b docsMember) int { return strings.Compare(a.Name, b.Name) })
	return view
}

func newDocsMember(name, in string, schema *openapi3.SchemaRef, description string, required bool) docsMember {
	view := docsMember{Name: name, In: in, Description: description, Required: required}
	if schema == nil {
		return view
	}
	view.Link, view.Type = schemaName(schema), typeName(schema.Value)
	if items := schema.Value.Items; items != nil {
		view.Link, view.Type = schemaName(items), "list of "+typeName(items.Value)
	}
	return view
}

// schemaName is the component's name of a reference, "" for a schema in place.
func schemaName(schema *openapi3.SchemaRef) string {
	if schema == nil || schema.Ref == "" {
		return ""
	}
	return schema.Ref[strings.LastIndex(schema.Ref, "/")+1:]
}

func typeName(schema *openapi3.Schema) string {
	if schema == nil || schema.Type == nil {
		return "anything"
	}
	name := strings.Join(schema.Type.Slice(), " or ")
	if schema.Format != "" {
		name += " (" + schema.Format + ")"
	}
	return name
}
