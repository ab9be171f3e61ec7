package smp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Address is where a datagram goes. Directed-route SMPs go to the permissive LID and queue pair 0.
type Address struct {
	LID  uint16
	QPN  uint32
	QKey uint32
}

// Transport carries datagrams. It is safe for concurrent use.
type Transport interface {
	// Exchange sends one request and returns its answer. It sets the transaction id. ErrUnreachable: no answer came, or there is
	// no way there. ErrClosed: the transport is gone. Else the context's error.
	Exchange(ctx context.Context, to Address, request MAD) (MAD, error)
	Close() error
}

// Faults of an exchange.
var (
	// ErrUnreachable means that nothing answered. It says nothing about what the port holds: unknown, never clear.
	ErrUnreachable = errors.New("no answer")
	// ErrClosed means that the transport was closed.
	ErrClosed = errors.New("transport closed")
)

// StatusError is an answer that is a refusal.
type StatusError struct{ Status uint16 }

// Error implements error.
func (e *StatusError) Error() string { return fmt.Sprintf("MAD status 0x%04x", e.Status) }

// Client asks typed questions over a transport. It keeps no state and is safe for concurrent use.
type Client struct {
	transport Transport
	mkey      uint64
}

// NewClient returns a client. The M_Key (0: none) is sent with every SMP; a fabric whose ports are protected at level 2 or
// above does not answer without it.
func NewClient(transport Transport, mkey uint64) *Client {
	return &Client{transport: transport, mkey: mkey}
}

func (c *Client) directed(ctx context.Context, method byte, path Path, attribute uint16, modifier uint32, data []byte) ([]byte, error) {
	m, err := newDirected(method, path, attribute, modifier, c.mkey)
	if err != nil {
		return nil, err
	}
	copy(m.subnData(), data)
	answer, err := c.transport.Exchange(ctx, Address{LID: permissiveLID}, m)
	if err != nil {
		return nil, err
	}
	if status := answer.Status(); status != 0 {
		return nil, &StatusError{Status: status}
	}
	return slices.Clone(answer.subnData()), nil
}

func (c *Client) get(ctx context.Context, what string, path Path, attribute uint16, modifier uint32) ([]byte, error) {
	data, err := c.directed(ctx, methodGet, path, attribute, modifier, nil)
	if err != nil {
		return nil, fmt.Errorf("read %s at %v: %w", what, path, err)
	}
	return data, nil
}

// NodeInfo reads what stands at the end of the path.
func (c *Client) NodeInfo(ctx context.Context, path Path) (NodeInfo, error) {
	data, err := c.get(ctx, "node info", path, attrNodeInfo, 0)
	if err != nil {
		return NodeInfo{}, err
	}
	return decodeNodeInfo(data), nil
}

// Description reads the node's own name for itself.
func (c *Client) Description(ctx context.Context, path Path) (string, error) {
	data, err := c.get(ctx, "node description", path, attrNodeDescription, 0)
	if err != nil {
		return "", err
	}
	return decodeDescription(data), nil
}

// PortInfo reads a port's state. On a CA, port 0 is the port through which the request came in.
func (c *Client) PortInfo(ctx context.Context, path Path, port int) (PortInfo, error) {
	data, err := c.get(ctx, "port info", path, attrPortInfo, uint32(port)) //nolint:gosec // a port number is 0…254
	if err != nil {
		return PortInfo{}, err
	}
	return decodePortInfo(data), nil
}

// SwitchInfo reads a switch's own attribute.
func (c *Client) SwitchInfo(ctx context.Context, path Path) (SwitchInfo, error) {
	data, err := c.get(ctx, "switch info", path, attrSwitchInfo, 0)
	if err != nil {
		return SwitchInfo{}, err
	}
	return decodeSwitchInfo(data), nil
}

func pkeyModifier(switchPort, block int) uint32 {
	return uint32(switchPort)<<16 | uint32(block) //nolint:gosec // both are small and not negative
}

// PKeyTable reads all blocks of a P_Key table of so many entries, trailing zeros cut. switchPort is 0 on a CA.
func (c *Client) PKeyTable(ctx context.Context, path Path, switchPort, entries int) ([]protocol.PKey, error) {
	keys := make([]protocol.PKey, 0, pkeysPerBlock*pkeyBlocks(entries))
	for block := range pkeyBlocks(entries) {
		data, err := c.get(ctx, "P_Key table", path, attrPKeyTable, pkeyModifier(switchPort, block))
		if err != nil {
			return nil, err
		}
		keys = append(keys, decodePKeyBlock(data)...)
	}
	return trimKeys(keys), nil
}

// SetPKeyBlock overwrites one block of a P_Key table. The subnet manager does not notice: it trusts its cache. For fault tests
// and for repair.
func (c *Client) SetPKeyBlock(ctx context.Context, path Path, switchPort, block int, keys []protocol.PKey) error {
	if len(keys) > pkeysPerBlock {
		return fmt.Errorf("write P_Key block: %d keys, at most %d", len(keys), pkeysPerBlock)
	}
	data := make([]byte, subnDataSize)
	encodePKeyBlock(data, keys)
	if _, err := c.directed(ctx, methodSet, path, attrPKeyTable, pkeyModifier(switchPort, block), data); err != nil {
		return fmt.Errorf("write P_Key block %d at %v: %w", block, path, err)
	}
	return nil
}

// Subnet administration: who answers, and the parts of a path record.
const (
	gsiQPN            = 1
	gsiQKey           = 0x80010000
	linkLocalPrefix   = 0xfe80000000000000
	maskDGID          = 1 << 2
	maskSGID          = 1 << 3
	maskNumPaths      = 1 << 12
	offPathDGID       = offSAData + 8
	offPathSGID       = offSAData + 24
	offPathNumPaths   = offSAData + 49
	saStatusNoRecords = 0x0300
	saStatusBadGID    = 0x0500 // the SM knows no such port
)

// HasPath asks the subnet administrator at smLID whether a path joins the two ports. It is the manager's word, out of its
// cache: a cross-check of the tables, never a substitute. Both ports must be on the local subnet; a port that the manager does
// not know has no path.
func (c *Client) HasPath(ctx context.Context, smLID int, from, to protocol.GUID) (bool, error) {
	m := newPathQuery(from, to)
	answer, err := c.transport.Exchange(ctx, Address{LID: uint16(smLID), QPN: gsiQPN, QKey: gsiQKey}, m) //nolint:gosec // a LID has 16 bits
	if err != nil {
		return false, fmt.Errorf("query path %v to %v: %w", from, to, err)
	}
	switch status := answer.Status(); status {
	case 0:
		return true, nil
	case saStatusNoRecords, saStatusBadGID:
		return false, nil
	default:
		return false, fmt.Errorf("query path %v to %v: %w", from, to, &StatusError{Status: status})
	}
}

func newPathQuery(from, to protocol.GUID) MAD {
	var m MAD
	m[offBaseVersion], m[offClass], m[offClassVersion], m[offMethod] = baseVersion, classSubnAdm, subnAdmVersion, methodGet
	binary.BigEndian.PutUint16(m[offAttribute:], attrPathRecord)
	binary.BigEndian.PutUint64(m[offSACompMask:], maskDGID|maskSGID|maskNumPaths)
	binary.BigEndian.PutUint64(m[offPathDGID:], linkLocalPrefix)
	binary.BigEndian.PutUint64(m[offPathDGID+8:], uint64(to))
	binary.BigEndian.PutUint64(m[offPathSGID:], linkLocalPrefix)
	binary.BigEndian.PutUint64(m[offPathSGID+8:], uint64(from))
	m[offPathNumPaths] = 1
	return m
}

// Close closes the transport.
func (c *Client) Close() error { return c.transport.Close() }
