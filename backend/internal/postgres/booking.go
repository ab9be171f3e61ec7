package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Booking keeps quotes, and reads capacity and what is known of customers for bookings.
type Booking struct{ db *DB }

// NewBooking returns the repository of db.
func NewBooking(db *DB) *Booking { return &Booking{db: db} }

type quoteRow struct {
	ID             ids.Quote `gorm:"primaryKey"`
	OrgID          ids.Org
	ProjectID      ids.Project
	InstanceTypeID ids.Instance
	SiteID         ids.Site
	PriceVersionID ids.Price
	Class          string
	Instances      int
	Topology       string
	StartAt        time.Time
	EndAt          time.Time
	Currency       string
	RateMicros     int64
	TaxRateBps     int
	SubtotalMinor  int64
	TaxMinor       int64
	TotalMinor     int64
	Terms          document[lease.Terms]
	TermsDigest    string
	Placement      document[booking.Candidate]
	ExpiresAt      time.Time
	LeaseID        ids.Lease
	CreatedBy      string
	CreatedAt      time.Time
}

func (quoteRow) TableName() string { return "quote" }

func newQuoteRow(q booking.Quote) quoteRow {
	return quoteRow{
		ID: q.ID, OrgID: q.Org, ProjectID: q.Project, InstanceTypeID: q.InstanceType, SiteID: q.Site, PriceVersionID: q.PriceVersion, Class: string(q.Class),
		Instances: q.Instances, Topology: string(q.Topology), StartAt: q.Window.Start, EndAt: q.Window.End, Currency: string(q.Rate.Currency),
		RateMicros: q.Rate.Micros, TaxRateBps: q.TaxRateBPS, SubtotalMinor: q.Subtotal.Minor, TaxMinor: q.Tax.Minor, TotalMinor: q.Total.Minor,
		Terms: document[lease.Terms]{q.Terms}, TermsDigest: q.TermsDigest, Placement: document[booking.Candidate]{q.Candidate}, ExpiresAt: q.ExpiresAt,
		LeaseID: q.Lease, CreatedBy: q.CreatedBy, CreatedAt: q.CreatedAt,
	}
}

func toQuote(r quoteRow, names quoteNames) booking.Quote {
	currency := money.Currency(r.Currency)
	return booking.Quote{
		ID: r.ID, Org: r.OrgID, Project: r.ProjectID, InstanceType: r.InstanceTypeID, TypeName: names.types[r.InstanceTypeID], Site: r.SiteID,
		SiteName: names.sites[r.SiteID], PriceVersion: r.PriceVersionID, Class: lease.Class(r.Class), Instances: r.Instances,
		Topology: booking.Topology(r.Topology), Window: lease.Window{Start: r.StartAt.UTC(), End: r.EndAt.UTC()},
		Rate: money.Rate{Micros: r.RateMicros, Currency: currency}, TaxRateBPS: r.TaxRateBps, Subtotal: money.Of(r.SubtotalMinor, currency),
		Tax: money.Of(r.TaxMinor, currency), Total: money.Of(r.TotalMinor, currency), Terms: r.Terms.Of, TermsDigest: r.TermsDigest,
		Candidate: r.Placement.Of, ExpiresAt: r.ExpiresAt.UTC(), Lease: r.LeaseID, CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(),
	}
}

// InsertQuote implements booking.Quotes.
func (s *Booking) InsertQuote(ctx context.Context, q booking.Quote) error {
	row := newQuoteRow(q)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert quote: %w", err)
	}
	return nil
}

// Quote implements booking.Quotes.
func (s *Booking) Quote(ctx context.Context, id ids.Quote) (booking.Quote, error) {
	return s.quote(ctx, conn(ctx), id)
}

// QuoteForUpdate implements booking.Quotes.
func (s *Booking) QuoteForUpdate(ctx context.Context, id ids.Quote) (booking.Quote, error) {
	return s.quote(ctx, conn(ctx).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), id)
}

func (s *Booking) quote(ctx context.Context, from *gorm.DB, id ids.Quote) (booking.Quote, error) {
	var rows []quoteRow
	if err := from.Where("id = ?", id).Find(&rows).Error; err != nil {
		return booking.Quote{}, fmt.Errorf("read quote: %w", err)
	}
	if len(rows) == 0 {
		return booking.Quote{}, fault.New(fault.NotFound, "quote-not-found", "there is no such quote")
	}
	names, err := s.quoteNames(ctx)
	if err != nil {
		return booking.Quote{}, err
	}
	return toQuote(rows[0], names), nil
}

// ListQuotes implements booking.Quotes. Ids rise with time, so the order by id is the order of creation.
func (s *Booking) ListQuotes(ctx context.Context, project ids.Project, after ids.Quote, limit int) ([]booking.Quote, error) {
	find := conn(ctx).Order("id DESC").Limit(limit)
	if !project.IsZero() {
		find = find.Where("project_id = ?", project)
	}
	if !after.IsZero() {
		find = find.Where("id < ?", after)
	}
	var rows []quoteRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list quotes: %w", err)
	}
	names, err := s.quoteNames(ctx)
	if err != nil {
		return nil, err
	}
	return each(rows, func(r quoteRow) booking.Quote { return toQuote(r, names) }), nil
}

// UseQuote implements booking.Quotes.
func (s *Booking) UseQuote(ctx context.Context, id ids.Quote, by ids.Lease) error {
	if err := conn(ctx).Model(&quoteRow{}).Where("id = ?", id).Update("lease_id", by).Error; err != nil {
		return fmt.Errorf("use quote: %w", err)
	}
	return nil
}

type quoteNames struct {
	types map[ids.Instance]string
	sites map[ids.Site]string
}

func (s *Booking) quoteNames(ctx context.Context) (quoteNames, error) {
	names := quoteNames{types: map[ids.Instance]string{}}
	var types []instanceTypeRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Select("id", "name").Find(&types).Error })
	if err != nil {
		return names, fmt.Errorf("read types' names: %w", err)
	}
	for _, t := range types {
		names.types[t.ID] = t.Name
	}
	names.sites, err = s.SiteNames(ctx)
	return names, err
}

// SiteNames implements booking.Market.
func (s *Booking) SiteNames(ctx context.Context) (map[ids.Site]string, error) {
	var rows []struct {
		ID   ids.Site
		Name string
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Raw("SELECT id, name FROM site").Scan(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("read sites' names: %w", err)
	}
	names := make(map[ids.Site]string, len(rows))
	for _, r := range rows {
		names[r.ID] = r.Name
	}
	return names, nil
}

// Customer implements booking.Customers.
func (s *Booking) Customer(ctx context.Context, org ids.Org) (booking.Customer, error) {
	var rows []struct {
		Currency            string
		TaxRateBps          int
		BookingsSuspendedAt *time.Time
		Types               *document[[]string]
		Sites               *document[[]string]
		MaxDurationSeconds  int64
		MaxLeaseMinor       *int64
	}
	// The policy's names are of the market, which tenants do not read.
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Raw(customerQuery, org).Scan(&rows).Error })
	if err != nil {
		return booking.Customer{}, fmt.Errorf("read organization: %w", err)
	}
	if len(rows) == 0 {
		return booking.Customer{}, fault.New(fault.NotFound, "organization-not-found", "there is no such organization")
	}
	r := rows[0]
	policy := booking.Policy{MaxDuration: time.Duration(r.MaxDurationSeconds) * time.Second, MaxTotalMinor: r.MaxLeaseMinor}
	if policy.Types, err = scannedIDs[ids.Instance](r.Types); err != nil {
		return booking.Customer{}, err
	}
	if policy.Sites, err = scannedIDs[ids.Site](r.Sites); err != nil {
		return booking.Customer{}, err
	}
	return booking.Customer{
		Currency: money.Currency(r.Currency), TaxRateBPS: r.TaxRateBps, Suspended: r.BookingsSuspendedAt != nil, Policy: policy,
	}, nil
}

// customerQuery reads the organization with its policy, whose names become ids; NULL: all.
const customerQuery = `
	SELECT o.currency, o.tax_rate_bps, o.bookings_suspended_at, coalesce(p.max_duration_seconds, 0) AS max_duration_seconds, p.max_lease_minor,
	       CASE WHEN p.instance_types IS NOT NULL THEN (SELECT coalesce(jsonb_agg(t.id), '[]') FROM instance_type t WHERE t.name = ANY (p.instance_types)) END AS types,
	       CASE WHEN p.sites IS NOT NULL THEN (SELECT coalesce(jsonb_agg(s.id), '[]') FROM site s WHERE s.name = ANY (p.sites)) END AS sites
	FROM organization o LEFT JOIN organization_policy p ON p.org_id = o.id WHERE o.id = ?`

// scannedIDs reads ids that the database has put into a list; nil for none.
func scannedIDs[T any, P interface {
	*T
	Scan(src any) error
}](list *document[[]string]) (*[]T, error) {
	if list == nil {
		return nil, nil //nolint:nilnil // no list is no limit
	}
	all := make([]T, len(list.Of))
	for i, text := range list.Of {
		if err := P(&all[i]).Scan(text); err != nil {
			return nil, fmt.Errorf("read policy: %w", err)
		}
	}
	return &all, nil
}

// Project implements booking.Customers.
func (s *Booking) Project(ctx context.Context, id ids.Project) (ids.Project, error) {
	find := "SELECT id FROM project WHERE archived_at IS NULL ORDER BY created_at, id LIMIT 1"
	args := []any{}
	if !id.IsZero() {
		find, args = "SELECT id FROM project WHERE archived_at IS NULL AND id = ?", []any{id}
	}
	var rows []ids.Project
	if err := conn(ctx).Raw(find, args...).Scan(&rows).Error; err != nil {
		return ids.Project{}, fmt.Errorf("read project: %w", err)
	}
	if len(rows) == 0 {
		return ids.Project{}, fault.New(fault.NotFound, "project-not-found", "there is no such project")
	}
	return rows[0], nil
}

// SSHKeys implements booking.Customers.
func (s *Booking) SSHKeys(ctx context.Context, all []ids.SSHKey) ([]lease.SSHKey, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var keys []lease.SSHKey
	err := conn(ctx).Raw("SELECT id, name, public_key FROM ssh_key WHERE id IN ? ORDER BY id", all).Scan(&keys).Error
	if err != nil {
		return nil, fmt.Errorf("read SSH keys: %w", err)
	}
	return keys, nil
}

// Queue implements booking.Market.
func (s *Booking) Queue(ctx context.Context, site ids.Site, hardware string) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec("SELECT pg_advisory_xact_lock(hashtextextended(?, 5309))", site.String()+" "+hardware).Error
	})
	if err != nil {
		return fmt.Errorf("queue for machines: %w", err)
	}
	return nil
}

// Obstacle implements booking.Market. Other leases' slots and those of maintenance count alike.
func (s *Booking) Obstacle(ctx context.Context, id ids.Lease, longer time.Duration) (*booking.Obstacle, error) {
	var found struct {
		TakenFrom *time.Time
		Off       bool
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT min(lower(o.occupied)) AS taken_from, coalesce(bool_or(n.state <> 'available'), false) AS off
			FROM allocation a JOIN node n ON n.id = a.node_id
			LEFT JOIN allocation o ON o.node_id = a.node_id AND o.slots && a.slots AND o.released_at IS NULL AND o.id <> a.id
				AND o.occupied && tstzrange(upper(a.occupied), upper(a.occupied) + ?::bigint * interval '1 microsecond')
			WHERE a.lease_id = ? AND a.released_at IS NULL AND a.replaced_by IS NULL`, longer.Microseconds(), id).Scan(&found).Error
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for an obstacle: %w", err)
	case found.TakenFrom != nil:
		return &booking.Obstacle{From: found.TakenFrom.UTC(), Machine: found.Off}, nil
	case found.Off:
		return &booking.Obstacle{Machine: true}, nil
	}
	return nil, nil //nolint:nilnil // nothing is in the way
}

// LockNodes implements booking.Market.
func (s *Booking) LockNodes(ctx context.Context, nodes []ids.Node) error {
	if len(nodes) == 0 {
		return nil
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec("SELECT id FROM node WHERE id IN ? ORDER BY id FOR NO KEY UPDATE", nodes).Error
	})
	if err != nil {
		return fmt.Errorf("lock nodes: %w", err)
	}
	return nil
}
