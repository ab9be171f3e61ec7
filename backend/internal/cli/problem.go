package cli

import (
	"errors"
	"fmt"
	"net/http"
	"sort"
	"strings"

	"github.com/leasehold/leasehold/backend/client"
)

// Exit statuses of the command.
const (
	ExitOK          = 0
	ExitFailure     = 1 // anything else
	ExitUsage       = 2 // the command line is wrong
	ExitForbidden   = 3 // not logged in, or not allowed
	ExitNotFound    = 4
	ExitConflict    = 5 // taken, changed meanwhile, expired
	ExitUnfunded    = 6 // balance or budget does not suffice
	ExitUnavailable = 7 // the server cannot be reached or is too busy: try again
	ExitUnhealthy   = 8 // doctor found a breach, or a proof did not verify
)

// ExitStatus returns the status that the process ends with for err.
func ExitStatus(err error) int {
	var problem *Problem
	var unhealthy *Unhealthy
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &unhealthy):
		return ExitUnhealthy
	case errors.As(err, &problem):
		return problem.exit()
	case isUsage(err):
		return ExitUsage
	default:
		return ExitFailure
	}
}

// Unhealthy says that a check found what must not be.
type Unhealthy struct{ Detail string }

// Error implements error.
func (u *Unhealthy) Error() string { return u.Detail }

// Problem is a refusal by the server (RFC 9457), or the failure to reach it (status 0).
type Problem struct {
	Status int
	Type   string
	Title  string
	Detail string
	Lines  []string // defective fields and facts, one a line
}

// Error implements error.
func (p *Problem) Error() string {
	text := p.Title
	switch {
	case p.Detail == "" || p.Detail == p.Title:
	case p.Type != "": // the server's title is only the status in words
		text = p.Detail
	default:
		text += ": " + p.Detail
	}
	return strings.Join(append([]string{text}, p.Lines...), "\n  ")
}

func (p *Problem) exit() int {
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ExitForbidden
	case http.StatusNotFound:
		return ExitNotFound
	case http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed:
		return ExitConflict
	case http.StatusPaymentRequired:
		return ExitUnfunded
	case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ExitUnavailable
	default:
		return ExitFailure
	}
}

func unreachable(server string, err error) error {
	return &Problem{Title: "Cannot reach " + server, Detail: err.Error()}
}

// take returns the answer's body, or the problem that came instead.
func take[T any](body *T, problem *client.Problem, response *http.Response) (*T, error) {
	if body != nil {
		return body, nil
	}
	return nil, newProblem(problem, response)
}

// done is take for answers without a body.
func done(want int, problem *client.Problem, response *http.Response) error {
	if response.StatusCode == want {
		return nil
	}
	return newProblem(problem, response)
}

func newProblem(problem *client.Problem, response *http.Response) error {
	if problem == nil {
		return &Problem{Status: response.StatusCode, Title: "Unexpected answer " + response.Status}
	}
	p := &Problem{Status: problem.Status, Type: problem.Type, Title: problem.Title}
	if problem.Detail != nil {
		p.Detail = *problem.Detail
	}
	if problem.Errors != nil {
		for _, field := range *problem.Errors {
			p.Lines = append(p.Lines, field.Pointer+": "+field.Detail)
		}
	}
	if problem.Facts != nil {
		for name, value := range *problem.Facts {
			p.Lines = append(p.Lines, fmt.Sprintf("%s: %v", name, value))
		}
		sort.Strings(p.Lines)
	}
	return p
}
