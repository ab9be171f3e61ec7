package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/leasehold/leasehold/backend/client"
)

// demo is what the steps leave for each other.
type demo struct {
	options Options
	api     *client.ClientWithResponses
	dir     string // keys and known hosts; removed at the end
	key     string // private key file
	keyID   string

	quoted     *client.Quote
	lease      *client.Lease
	nodes      []client.LeaseNode
	attestKeys []byte
	charged    int64
	secret     string // that a tenant wrote
}

func (d *demo) cleanUp() {
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}

// open logs in and returns a client that carries the access token, which outlives the demo.
func open(ctx context.Context, server, email, password string) (*client.ClientWithResponses, *client.Session, error) {
	anonymous, err := client.NewClientWithResponses(server)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	answer, err := anonymous.CreateSessionWithResponse(ctx, client.SessionCreate{Email: email, Password: password})
	if err != nil {
		return nil, nil, fmt.Errorf("log in: %w", err)
	}
	if answer.JSON201 == nil {
		return nil, nil, refused(answer.HTTPResponse, answer.Body)
	}
	token := answer.JSON201.AccessToken
	api, err := client.NewClientWithResponses(server, client.WithHTTPClient(&http.Client{Timeout: 90 * time.Second}),
		client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+token)
			return nil
		}))
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	return api, answer.JSON201, nil
}

// got returns the body of the wanted status, or the server's refusal as an error.
func got[T any](body *T, response *http.Response, raw []byte, err error) (*T, error) {
	switch {
	case err != nil:
		return nil, err
	case body == nil:
		return nil, refused(response, raw)
	default:
		return body, nil
	}
}

func refused(response *http.Response, raw []byte) error {
	return fmt.Errorf("the server answered %s: %s", response.Status, raw)
}

func fresh() string { return rand.Text() }
