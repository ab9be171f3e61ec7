// Package nvme erases NVMe drives by their controllers' own commands, and shows that what lay there is gone. It speaks the admin
// commands of the NVM Express base specification through the kernel's pass-through.
package nvme

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// Admin opcodes.
const (
	opIdentify = 0x06
	opLogPage  = 0x02
	opFormat   = 0x80
	opSanitize = 0x84
)

// What Identify returns.
const (
	cnsNamespace  = 0x00
	cnsController = 0x01
	identifyBytes = 4096
)

const (
	logSanitize   = 0x81
	allNamespaces = 0xffffffff
)

// Command is an admin command. Data goes the way that the opcode says: here always from the controller.
type Command struct {
	Opcode    uint8
	Namespace uint32
	CDW10     uint32
	CDW11     uint32
	Data      []byte
	Timeout   time.Duration
}

// Admin takes admin commands. It returns a *StatusError when the controller refuses one.
type Admin interface {
	Do(ctx context.Context, c Command) error
}

// StatusError is what a controller answered that did not do what it was told. Status is the specification's, type and code.
type StatusError struct{ Status uint16 }

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the controller answered status %#04x (%s)", e.Status, e.words())
}

func (e *StatusError) words() string {
	known := map[uint16]string{
		0x01: "invalid opcode", 0x02: "invalid field", 0x06: "internal error", 0x0b: "invalid namespace or format", 0x1c: "sanitize failed", 0x1d: "sanitize in progress",
		0x20: "namespace is write protected", 0x10a: "invalid format", 0x15: "operation denied",
	}
	if words, ok := known[e.Status&0x7ff]; ok {
		return words
	}
	return "see the specification"
}

// Controller is what a drive says of itself.
type Controller struct {
	Model, Serial, Firmware string
	// Formats: it has Format NVM. FormatsAll: a format, or its secure erase, is of all namespaces at once. CryptoErase: its format can
	// change the key.
	Formats, FormatsAll, CryptoErase bool
	// SanitizeCrypto, SanitizeBlock and SanitizeOverwrite are the ways of Sanitize that it has.
	SanitizeCrypto, SanitizeBlock, SanitizeOverwrite bool
}

// Identify asks the controller.
func Identify(ctx context.Context, a Admin) (Controller, error) {
	data := make([]byte, identifyBytes)
	if err := a.Do(ctx, Command{Opcode: opIdentify, CDW10: cnsController, Data: data}); err != nil {
		return Controller{}, fmt.Errorf("identify controller: %w", err)
	}
	return parseController(data), nil
}

// parseController reads the fields at the places that the specification gives them.
func parseController(data []byte) Controller {
	oacs, fna, sanicap := binary.LittleEndian.Uint16(data[256:]), data[524], binary.LittleEndian.Uint32(data[328:])
	return Controller{
		Serial: text(data[4:24]), Model: text(data[24:64]), Firmware: text(data[64:72]),
		Formats: oacs&(1<<1) != 0, FormatsAll: fna&0b11 != 0, CryptoErase: fna&(1<<2) != 0,
		SanitizeCrypto: sanicap&1 != 0, SanitizeBlock: sanicap&(1<<1) != 0, SanitizeOverwrite: sanicap&(1<<2) != 0,
	}
}

func text(field []byte) string { return strings.ToValidUTF8(strings.Trim(string(field), " \x00"), "?") }

// Capability says in words what a drive can do to erase itself.
func (c Controller) Capability() string {
	var can []string
	for _, way := range []struct {
		has  bool
		name string
	}{
		{c.SanitizeCrypto, "sanitize: crypto erase"},
		{c.SanitizeBlock, "sanitize: block erase"},
		{c.SanitizeOverwrite, "sanitize: overwrite"},
		{c.Formats && c.CryptoErase, "format: crypto erase"},
		{c.Formats, "format: user data erase"},
	} {
		if way.has {
			can = append(can, way.name)
		}
	}
	if len(can) == 0 {
		return "none"
	}
	return strings.Join(can, ", ")
}

// namespaceFormat is the LBA format that a namespace has now, as Format NVM wants to be told it.
func namespaceFormat(ctx context.Context, a Admin, namespace uint32) (uint32, error) {
	data := make([]byte, identifyBytes)
	if err := a.Do(ctx, Command{Opcode: opIdentify, Namespace: namespace, CDW10: cnsNamespace, Data: data}); err != nil {
		return 0, fmt.Errorf("identify namespace %d: %w", namespace, err)
	}
	flbas := uint32(data[26])
	return flbas&0xf | (flbas>>5&0b11)<<12, nil // LBAFL, and LBAFU for drives with more than 16 formats
}
