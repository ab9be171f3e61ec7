package postgres

import (
	"context"
	"fmt"
)

// TestGatewayVault keeps the test gateway's intents, each call in a transaction of the platform's own.
type TestGatewayVault struct{ db *DB }

// NewTestGatewayVault returns the vault of db.
func NewTestGatewayVault(db *DB) *TestGatewayVault { return &TestGatewayVault{db: db} }

// Keep writes an intent under its ref unless there is one already, and returns the one that is kept.
func (s *TestGatewayVault) Keep(ctx context.Context, ref string, intent []byte) ([]byte, error) {
	var kept string
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		if err := conn(ctx).Exec("INSERT INTO test_gateway_intent (ref, body) VALUES (?, ?) ON CONFLICT DO NOTHING", ref, string(intent)).Error; err != nil {
			return err
		}
		return conn(ctx).Raw("SELECT body::text FROM test_gateway_intent WHERE ref = ?", ref).Scan(&kept).Error
	})
	if err != nil {
		return nil, fmt.Errorf("keep test intent: %w", err)
	}
	return []byte(kept), nil
}

// Replace writes over an intent.
func (s *TestGatewayVault) Replace(ctx context.Context, ref string, intent []byte) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec("UPDATE test_gateway_intent SET body = ? WHERE ref = ?", string(intent), ref).Error
	})
	if err != nil {
		return fmt.Errorf("replace test intent: %w", err)
	}
	return nil
}

// Get reads an intent; nil when there is none.
func (s *TestGatewayVault) Get(ctx context.Context, ref string) ([]byte, error) {
	var found []string
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT body::text FROM test_gateway_intent WHERE ref = ?", ref).Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read test intent: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return []byte(found[0]), nil
}
