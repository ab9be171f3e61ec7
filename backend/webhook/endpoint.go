package webhook

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Endpoint is where an organization wants to be told.
type Endpoint struct {
	ID          ids.Webhook
	Org         ids.Org
	URL         string
	Description string
	Types       []string // what it wants: types and families; none: everything
	// Disabled says why nothing is delivered; "": it is.
	Disabled   Disability
	DisabledAt time.Time
	// FailingSince is its first failure after its last success; zero: it works.
	FailingSince time.Time
	// Secret and Previous are sealed. Until PreviousUntil a delivery is signed with both, so that its receiver can change in between.
	Secret        []byte
	Previous      []byte
	PreviousUntil time.Time
	CreatedBy     string
	CreatedAt     time.Time
	Version       int64
}

// Disability is why an endpoint gets nothing.
type Disability string

// The disabilities.
const (
	Enabled Disability = ""
	Asked   Disability = "asked"   // somebody wanted it so
	Failing Disability = "failing" // it did not take a delivery for days
	Gone    Disability = "gone"    // it answered 410
)

// EndpointInput is what an endpoint shall be.
type EndpointInput struct {
	URL         string
	Description string
	Types       []string
}

const maxDescription = 200

func (in EndpointInput) validate(lab bool) error {
	invalid := errInvalid()
	for _, defect := range []*fault.Fault{checkURL(in.URL, lab), checkTypes(in.Types)} {
		if defect != nil {
			invalid.Fields = append(invalid.Fields, defect.Fields...)
		}
	}
	if len([]rune(in.Description)) > maxDescription {
		invalid = invalid.At("/description", fmt.Sprintf("has at most %d characters", maxDescription))
	}
	if len(invalid.Fields) > 0 {
		return invalid
	}
	return nil
}

// EndpointChange is what shall be different; nil: what it was.
type EndpointChange struct {
	URL         *string
	Description *string
	Types       *[]string
	Enabled     *bool
}

// apply returns the endpoint as it shall be.
func (c EndpointChange) apply(e Endpoint, lab bool, now time.Time) (Endpoint, error) {
	in := EndpointInput{URL: e.URL, Description: e.Description, Types: e.Types}
	if c.URL != nil {
		in.URL = *c.URL
	}
	if c.Description != nil {
		in.Description = *c.Description
	}
	if c.Types != nil {
		in.Types = *c.Types
	}
	if err := in.validate(lab); err != nil {
		return Endpoint{}, err
	}
	e.URL, e.Description, e.Types = in.URL, in.Description, slices.Clone(in.Types)
	switch {
	case c.Enabled == nil:
	case *c.Enabled:
		e.Disabled, e.DisabledAt, e.FailingSince = Enabled, time.Time{}, time.Time{}
	case e.Disabled == Enabled:
		e.Disabled, e.DisabledAt = Asked, now
	}
	return e, nil
}

// seen is the endpoint for the audit log, without secrets.
func (e Endpoint) seen() map[string]any {
	return map[string]any{"url": e.URL, "description": e.Description, "event_types": e.Types, "disabled": e.Disabled}
}

// secretBytes is within the 24 to 64 bytes that Standard Webhooks asks for.
const secretBytes = 32

// newSecret is whsec_ and base64, the form of Standard Webhooks.
func newSecret() (string, error) {
	raw := make([]byte, secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("draw secret: %w", err)
	}
	return "whsec_" + base64.StdEncoding.EncodeToString(raw), nil
}
