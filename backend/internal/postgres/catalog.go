package postgres

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Catalog keeps instance types and prices: market tables, read in the platform role, the same for everybody.
type Catalog struct{ db *DB }

// NewCatalog returns the catalogue of db.
func NewCatalog(db *DB) *Catalog { return &Catalog{db: db} }

// intList is an integer[] column.
type intList []int

// Value implements driver.Valuer: the array's text form.
func (l intList) Value() (driver.Value, error) {
	words := each(l, strconv.Itoa)
	return "{" + strings.Join(words, ",") + "}", nil
}

// Scan implements sql.Scanner.
func (l *intList) Scan(src any) error {
	text, ok := src.(string)
	if !ok {
		return fmt.Errorf("scan integers: unexpected %T", src)
	}
	*l = nil
	for word := range strings.SplitSeq(strings.Trim(text, "{}"), ",") {
		if word == "" {
			continue
		}
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("scan integers: %w", err)
		}
		*l = append(*l, n)
	}
	return nil
}

type instanceTypeRow struct {
	ID                ids.Instance `gorm:"primaryKey"`
	Name              string
	Title             string
	Hardware          string
	Mode              string
	SlotWidth         int
	SlotStride        int
	BayStarts         intList `gorm:"type:integer[]"`
	GPUCount          int     `gorm:"column:gpu_count"`
	MIGProfile        string  `gorm:"column:mig_profile"`
	WithHCA           bool    `gorm:"column:with_hca"`
	GPUModel          string  `gorm:"column:gpu_model"`
	GPUMemoryBytes    int64   `gorm:"column:gpu_memory_bytes"`
	RatedPer          string
	LeadSeconds       int
	TurnaroundSeconds int
	Image             string
	RetiredAt         *time.Time
	Version           int64
	CreatedAt         time.Time
}

func (instanceTypeRow) TableName() string { return "instance_type" }

func newInstanceTypeRow(t catalog.InstanceType) instanceTypeRow {
	return instanceTypeRow{
		ID: t.ID, Name: t.Name, Title: t.Title, Hardware: t.Hardware, Mode: string(t.Mode), SlotWidth: t.Width, SlotStride: t.Stride, BayStarts: t.BayStarts,
		GPUCount: t.GPUs, MIGProfile: t.MIGProfile, WithHCA: t.WithHCA, GPUModel: t.GPUModel, GPUMemoryBytes: t.GPUMemoryBytes, RatedPer: string(t.RatedPer),
		LeadSeconds: int(t.Lead.Seconds()), TurnaroundSeconds: int(t.Turnaround.Seconds()), Image: t.Image, RetiredAt: nullable(t.RetiredAt),
		Version: t.Version, CreatedAt: t.CreatedAt,
	}
}

func toInstanceType(r instanceTypeRow) catalog.InstanceType {
	return catalog.InstanceType{
		ID: r.ID, Name: r.Name, Title: r.Title, Hardware: r.Hardware, Mode: catalog.Mode(r.Mode), Width: r.SlotWidth, Stride: r.SlotStride, BayStarts: r.BayStarts,
		GPUs: r.GPUCount, MIGProfile: r.MIGProfile, WithHCA: r.WithHCA, GPUModel: r.GPUModel, GPUMemoryBytes: r.GPUMemoryBytes,
		RatedPer: catalog.RatedPer(r.RatedPer), Lead: time.Duration(r.LeadSeconds) * time.Second, Turnaround: time.Duration(r.TurnaroundSeconds) * time.Second,
		Image: r.Image, RetiredAt: instant(r.RetiredAt), Version: r.Version, CreatedAt: r.CreatedAt.UTC(),
	}
}

// Types implements catalog.Repository.
func (c *Catalog) Types(ctx context.Context) ([]catalog.InstanceType, error) {
	var rows []instanceTypeRow
	err := c.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Where("retired_at IS NULL").Order("name").Find(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list instance types: %w", err)
	}
	return each(rows, toInstanceType), nil
}

// TypeByName implements catalog.Repository.
func (c *Catalog) TypeByName(ctx context.Context, name string) (catalog.InstanceType, error) {
	return c.typeWhere(ctx, "name = ? AND retired_at IS NULL", name)
}

// TypeByID implements catalog.Repository; it finds retired types too, since leases outlive them.
func (c *Catalog) TypeByID(ctx context.Context, id ids.Instance) (catalog.InstanceType, error) {
	return c.typeWhere(ctx, "id = ?", id)
}

func (c *Catalog) typeWhere(ctx context.Context, condition string, arg any) (catalog.InstanceType, error) {
	var rows []instanceTypeRow
	err := c.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Where(condition, arg).Limit(1).Find(&rows).Error })
	if err != nil {
		return catalog.InstanceType{}, fmt.Errorf("read instance type: %w", err)
	}
	if len(rows) == 0 {
		return catalog.InstanceType{}, fault.New(fault.NotFound, "instance-type-not-found", "there is no such instance type")
	}
	return toInstanceType(rows[0]), nil
}

// AddType implements catalog.Repository.
func (c *Catalog) AddType(ctx context.Context, t catalog.InstanceType) (ids.Instance, error) {
	var id ids.Instance
	err := c.db.asPlatform(ctx, func(ctx context.Context) error {
		row := newInstanceTypeRow(t)
		if err := conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "name"}}, DoNothing: true}).Create(&row).Error; err != nil {
			return err
		}
		return conn(ctx).Raw("SELECT id FROM instance_type WHERE name = ?", t.Name).Row().Scan(&id)
	})
	if err != nil {
		return ids.Instance{}, fmt.Errorf("add instance type: %w", err)
	}
	return id, nil
}

// openRange is a tstzrange column with a lower bound and perhaps an upper one; a zero To is none.
type openRange struct{ From, To time.Time }

// Value implements driver.Valuer: the range's text form.
func (r openRange) Value() (driver.Value, error) {
	upper := ""
	if !r.To.IsZero() {
		upper = `"` + r.To.UTC().Format(instantForm) + `"`
	}
	return `["` + r.From.UTC().Format(instantForm) + `",` + upper + ")", nil
}

// Scan implements sql.Scanner.
func (r *openRange) Scan(src any) error {
	low, high, err := rangeBounds(src)
	if err != nil {
		return fmt.Errorf("scan validity: %w", err)
	}
	r.To = time.Time{}
	if r.From, err = scanInstant(low); err != nil || high == "" {
		return err
	}
	r.To, err = scanInstant(high)
	return err
}

type priceVersionRow struct {
	ID                 ids.Price `gorm:"primaryKey"`
	InstanceTypeID     ids.Instance
	SiteID             ids.Site
	Currency           string
	RateMicros         int64
	Valid              openRange
	MinDurationSeconds int64
	MaxDurationSeconds int64
	NoticeSeconds      int64
	RefundSchedule     document[[]lease.RefundStep]
	EarlyRefundBps     int64
	CreatedAt          time.Time
}

func (priceVersionRow) TableName() string { return "price_version" }

func newPriceVersionRow(p catalog.PriceVersion) priceVersionRow {
	refunds := p.Refunds
	if refunds == nil {
		refunds = []lease.RefundStep{}
	}
	return priceVersionRow{
		ID: p.ID, InstanceTypeID: p.InstanceType, SiteID: p.Site, Currency: string(p.Rate.Currency), RateMicros: p.Rate.Micros,
		Valid: openRange{From: p.ValidFrom, To: p.ValidTo}, MinDurationSeconds: int64(p.MinDuration.Seconds()), MaxDurationSeconds: int64(p.MaxDuration.Seconds()),
		NoticeSeconds: int64(p.Notice.Seconds()), RefundSchedule: document[[]lease.RefundStep]{refunds}, EarlyRefundBps: p.EarlyRefundBPS, CreatedAt: p.CreatedAt,
	}
}

func toPriceVersion(r priceVersionRow) catalog.PriceVersion {
	return catalog.PriceVersion{
		ID: r.ID, InstanceType: r.InstanceTypeID, Site: r.SiteID, Rate: money.Rate{Micros: r.RateMicros, Currency: money.Currency(r.Currency)},
		ValidFrom: r.Valid.From, ValidTo: r.Valid.To, MinDuration: time.Duration(r.MinDurationSeconds) * time.Second,
		MaxDuration: time.Duration(r.MaxDurationSeconds) * time.Second, Notice: time.Duration(r.NoticeSeconds) * time.Second,
		Refunds: r.RefundSchedule.Of, EarlyRefundBPS: r.EarlyRefundBps, CreatedAt: r.CreatedAt.UTC(),
	}
}

// Prices implements catalog.Repository.
func (c *Catalog) Prices(ctx context.Context, instanceType ids.Instance, site ids.Site, at time.Time) ([]catalog.PriceVersion, error) {
	var rows []priceVersionRow
	err := c.db.asPlatform(ctx, func(ctx context.Context) error {
		find := conn(ctx).Order("lower(valid) DESC, id")
		if !instanceType.IsZero() {
			find = find.Where("instance_type_id = ?", instanceType)
		}
		if !site.IsZero() {
			find = find.Where("site_id = ?", site)
		}
		if !at.IsZero() {
			find = find.Where("valid @> ?::timestamptz", at)
		}
		return find.Find(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	return each(rows, toPriceVersion), nil
}

// AddPrice implements catalog.Repository.
func (c *Catalog) AddPrice(ctx context.Context, p catalog.PriceVersion) error {
	err := c.db.asPlatform(ctx, func(ctx context.Context) error {
		if err := endPrice(conn(ctx), p); err != nil {
			return err
		}
		row := newPriceVersionRow(p)
		return conn(ctx).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("add price: %w", translate(err))
	}
	return nil
}

// endPrice ends the version that is valid when p begins, at that instant.
func endPrice(db *gorm.DB, p catalog.PriceVersion) error {
	return db.Exec(`UPDATE price_version SET valid = tstzrange(lower(valid), ?)
		WHERE instance_type_id = ? AND site_id = ? AND currency = ? AND valid @> ?::timestamptz AND lower(valid) < ?`,
		p.ValidFrom, p.InstanceType, p.Site, string(p.Rate.Currency), p.ValidFrom, p.ValidFrom).Error
}
