package nvme

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrUnsupported says that a drive has no command that erases it.
var ErrUnsupported = errors.New("the controller has neither Sanitize nor Format NVM")

// Ways of Sanitize and of Format's secure erase, as commands want them.
const (
	sanitizeBlock     = 2
	sanitizeOverwrite = 3
	sanitizeCrypto    = 4
	eraseUserData     = 1
	eraseCrypto       = 2
)

// formatTimeout bounds a Format NVM; the largest drives take long over a user data erase.
const formatTimeout = time.Hour

// Erase erases the whole drive by the best of its controller's own ways, and returns that way's name. namespaces are those that the host
// sees. ErrUnsupported.
func Erase(ctx context.Context, a Admin, c Controller, namespaces []uint32, poll time.Duration) (string, error) {
	switch {
	case c.SanitizeCrypto:
		return "sanitize: crypto erase", sanitize(ctx, a, sanitizeCrypto, poll)
	case c.SanitizeBlock:
		return "sanitize: block erase", sanitize(ctx, a, sanitizeBlock, poll)
	case c.Formats && c.CryptoErase:
		return "format: crypto erase", format(ctx, a, c, namespaces, eraseCrypto)
	case c.Formats:
		return "format: user data erase", format(ctx, a, c, namespaces, eraseUserData)
	case c.SanitizeOverwrite:
		return "sanitize: overwrite", sanitize(ctx, a, sanitizeOverwrite, poll)
	default:
		return "none", ErrUnsupported
	}
}

func format(ctx context.Context, a Admin, c Controller, namespaces []uint32, erase uint32) error {
	if len(namespaces) == 0 {
		return errors.New("format: the drive shows no namespace")
	}
	for _, n := range namespaces {
		lbaFormat, err := namespaceFormat(ctx, a, n)
		if err != nil {
			return err
		}
		target := n
		if c.FormatsAll {
			target = allNamespaces
		}
		if err := a.Do(ctx, Command{Opcode: opFormat, Namespace: target, CDW10: lbaFormat | erase<<9, Timeout: formatTimeout}); err != nil {
			return fmt.Errorf("format namespace %d: %w", n, err)
		}
		if c.FormatsAll {
			return nil
		}
	}
	return nil
}

// States of a sanitize operation, in the low bits of its log's status.
const (
	sanitizeDone       = 1
	sanitizeInProgress = 2
	sanitizeFailed     = 3
	sanitizeDoneNoDrop = 4 // completed, and blocks were not deallocated as was asked
)

// sanitize starts the operation and reads its log until it has ended. It goes on in the drive even when the power fails.
func sanitize(ctx context.Context, a Admin, action uint32, poll time.Duration) error {
	cdw10 := action
	if action == sanitizeOverwrite {
		cdw10 |= 1 << 4 // one pass
	}
	if err := a.Do(ctx, Command{Opcode: opSanitize, CDW10: cdw10}); err != nil {
		return fmt.Errorf("sanitize: %w", err)
	}
	for {
		state, err := sanitizeState(ctx, a)
		if err != nil {
			return err
		}
		switch state {
		case sanitizeDone, sanitizeDoneNoDrop:
			return nil
		case sanitizeFailed:
			return errors.New("sanitize: the controller reports that it failed")
		case sanitizeInProgress:
		default:
			return fmt.Errorf("sanitize: the controller's log says %d, as if it had never begun", state)
		}
		timer := time.NewTimer(poll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("sanitize: %w", ctx.Err())
		}
	}
}

func sanitizeState(ctx context.Context, a Admin) (uint16, error) {
	const bytes = 32
	data := make([]byte, bytes)
	err := a.Do(ctx, Command{Opcode: opLogPage, Namespace: allNamespaces, CDW10: logSanitize | (bytes/4-1)<<16, Data: data})
	if err != nil {
		return 0, fmt.Errorf("read sanitize log: %w", err)
	}
	return binary.LittleEndian.Uint16(data[2:]) & 0b111, nil
}
