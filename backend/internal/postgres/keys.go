package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/internal/keys"
)

// SigningKeys keeps the public halves of the platform's signing keys, for ever. It implements keys.Registry.
type SigningKeys struct{ db *DB }

var _ keys.Registry = (*SigningKeys)(nil)

// NewSigningKeys returns the signing keys of db.
func NewSigningKeys(db *DB) *SigningKeys { return &SigningKeys{db: db} }

type signingKeyRow struct {
	Kid       string `gorm:"primaryKey"`
	Purpose   string
	PublicKey []byte
	CreatedAt time.Time
	RetiredAt *time.Time
}

func (signingKeyRow) TableName() string { return "signing_key" }

// PublishKey implements keys.Registry.
func (s *SigningKeys) PublishKey(ctx context.Context, purpose keys.Purpose, key keys.Published) error {
	row := signingKeyRow{Kid: key.KeyID, Purpose: string(purpose), PublicKey: key.Public, CreatedAt: key.CreatedAt, RetiredAt: nullable(key.RetiredAt)}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&row).Error
	})
	if err != nil {
		return fmt.Errorf("insert signing key: %w", err)
	}
	return nil
}

// PublishedKeys implements keys.Registry.
func (s *SigningKeys) PublishedKeys(ctx context.Context, purpose keys.Purpose) ([]keys.Published, error) {
	var rows []signingKeyRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Where("purpose = ?", string(purpose)).Order("created_at, kid").Find(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list signing keys: %w", err)
	}
	return each(rows, func(r signingKeyRow) keys.Published {
		return keys.Published{KeyID: r.Kid, Public: r.PublicKey, CreatedAt: r.CreatedAt.UTC(), RetiredAt: instant(r.RetiredAt)}
	}), nil
}
