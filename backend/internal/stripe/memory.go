package stripe

import (
	"context"
	"sync"
)

// Memory is a vault that forgets when its process ends.
type Memory struct {
	mu      sync.Mutex
	intents map[string][]byte
}

// NewMemory returns an empty vault.
func NewMemory() *Memory { return &Memory{intents: map[string][]byte{}} }

var _ Vault = (*Memory)(nil)

// Keep implements Vault.
func (m *Memory) Keep(_ context.Context, ref string, intent []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if kept, ok := m.intents[ref]; ok {
		return kept, nil
	}
	m.intents[ref] = intent
	return intent, nil
}

// Replace implements Vault.
func (m *Memory) Replace(_ context.Context, ref string, intent []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intents[ref] = intent
	return nil
}

// Get implements Vault.
func (m *Memory) Get(_ context.Context, ref string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.intents[ref], nil
}
