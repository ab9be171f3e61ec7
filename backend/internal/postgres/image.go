package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/image"
)

// Images keeps the register of disk images: a market table.
type Images struct{ db *DB }

var _ image.Images = (*Images)(nil)

// NewImages returns the register of db.
func NewImages(db *DB) *Images { return &Images{db: db} }

type diskImageRow struct {
	Name      string `gorm:"primaryKey"`
	URL       string
	Format    string
	SHA256    string `gorm:"column:sha256"`
	SizeBytes int64
	CreatedAt time.Time
}

func (diskImageRow) TableName() string { return "disk_image" }

func toImage(r diskImageRow) image.Image {
	return image.Image{Name: r.Name, URL: r.URL, Format: r.Format, SHA256: r.SHA256, SizeBytes: r.SizeBytes, CreatedAt: r.CreatedAt.UTC()}
}

// Put implements image.Images.
func (s *Images) Put(ctx context.Context, i image.Image) error {
	row := diskImageRow{Name: i.Name, URL: i.URL, Format: i.Format, SHA256: i.SHA256, SizeBytes: i.SizeBytes, CreatedAt: i.CreatedAt}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "name"}}, UpdateAll: true}).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("put image: %w", translate(err))
	}
	return nil
}

// Get implements image.Images.
func (s *Images) Get(ctx context.Context, name string) (image.Image, error) {
	rows, err := scan[diskImageRow](ctx, s.db, "SELECT * FROM disk_image WHERE name = ?", name)
	if err != nil {
		return image.Image{}, err
	}
	if len(rows) == 0 {
		return image.Image{}, fault.New(fault.NotFound, "image-not-found", "there is no such image")
	}
	return toImage(rows[0]), nil
}

// List implements image.Images.
func (s *Images) List(ctx context.Context) ([]image.Image, error) {
	rows, err := scan[diskImageRow](ctx, s.db, "SELECT * FROM disk_image ORDER BY name")
	return each(rows, toImage), err
}

// Remove implements image.Images.
func (s *Images) Remove(ctx context.Context, name string) error {
	_, err := scan[int](ctx, s.db, "DELETE FROM disk_image WHERE name = ? RETURNING 1", name)
	return err
}
