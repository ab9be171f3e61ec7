package billing

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// IssuerName is whose name stands on invoices.
const IssuerName = "Leasehold"

// Party is who an invoice is for.
type Party struct {
	ID      ids.Org `json:"id"`
	Name    string  `json:"name"`
	Country string  `json:"country"` // ISO 3166-1 alpha-2
}

// Title is what people know a lease by.
type Title struct {
	Lease       ids.Lease
	Name        string
	Type        ids.Instance
	TypeName    string // e.g. h100-sxm.8x.ndr
	Instances   int
	Class       lease.Class
	Site        ids.Site
	SiteName    string
	Project     ids.Project
	ProjectName string
	Tags        map[string]string
}

// Statement is an invoice with the names that people and their tools read it by.
type Statement struct {
	Invoice
	Customer Party
	Titles   map[ids.Lease]Title // of every lease on a line
}

// Statement reads an invoice, or the draft of one, with its names. It returns a NotFound fault, also for another organization's.
func (s *Service) Statement(ctx context.Context, id ids.Invoice) (Statement, error) {
	var made Statement
	err := s.within(ctx, "read statement", func(ctx context.Context) error {
		invoice, err := s.invoices.Invoice(ctx, id)
		if err != nil {
			return err
		}
		named, err := s.named(ctx, invoice.Org, []Invoice{invoice})
		if err != nil {
			return err
		}
		made = named[0]
		return nil
	})
	return made, err
}

// Statements reads an organization's invoices and drafts that have a line in [from, to), oldest first.
func (s *Service) Statements(ctx context.Context, org ids.Org, from, to time.Time) ([]Statement, error) {
	var made []Statement
	err := s.within(ctx, "read statements", func(ctx context.Context) error {
		invoices, err := s.invoices.Within(ctx, org, from, to)
		if err != nil {
			return err
		}
		made, err = s.named(ctx, org, invoices)
		return err
	})
	return made, err
}

func (s *Service) named(ctx context.Context, org ids.Org, invoices []Invoice) ([]Statement, error) {
	leases := map[ids.Lease]bool{}
	for _, invoice := range invoices {
		for _, line := range invoice.Lines {
			leases[line.Lease] = true
		}
	}
	customer, titles, err := s.invoices.Names(ctx, org, leases)
	if err != nil {
		return nil, err
	}
	made := make([]Statement, len(invoices))
	for i, invoice := range invoices {
		made[i] = Statement{Invoice: invoice, Customer: customer, Titles: titles}
	}
	return made, nil
}
