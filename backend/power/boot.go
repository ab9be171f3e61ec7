package power

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Prefixes of tokens, so that one that is found somewhere says what it is.
const (
	ServicePrefix = "lhb_"
	phonePrefix   = "lhp_"
)

func newToken(prefix string) (string, []byte) {
	token := prefix + rand.Text() + rand.Text()
	return token, hashOf(token)
}

func hashOf(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// Netboot is the answer to a machine that asks the network what to boot.
type Netboot struct {
	Name     string // the node's
	Token    string
	Server   string // the control plane, for the agent
	Insecure bool   // by plain HTTP
}

// Netboot answers the machine with that MAC address. Only while a power operation has armed that very machine is there anything to boot;
// each answer carries a new token, which makes the one before worthless.
//
// It returns a NotFound fault for a machine that is not known, and a Conflict fault, code "not-armed", for one that is to boot from its disk.
func (s *Service) Netboot(ctx context.Context, mac string) (Netboot, error) {
	var answer Netboot
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		m, err := s.Machines.MachineByMAC(ctx, mac)
		if err != nil {
			return err
		}
		t, armed, err := s.Machines.Armed(ctx, m.Node, s.Clock.Now())
		if err != nil {
			return err
		}
		if !armed {
			return fault.New(fault.Conflict, "not-armed", "nothing is to be booted from the network now")
		}
		token, hash := newToken(ServicePrefix)
		t.Hash = hash
		answer = Netboot{Name: m.Name, Token: token, Server: s.NodesURL, Insecure: s.InsecureNodes}
		return s.Machines.UpdateTicket(ctx, t)
	})
	if err != nil {
		return Netboot{}, fmt.Errorf("boot from network: %w", err)
	}
	return answer, nil
}

// UseBoot implements fleet.Boots: the agent of one boot of one machine, known by its key, enrols with that boot's token, and the machine
// counts as being in the service OS. The same key may come again, when the answer was lost. It is for a transaction of the caller's.
//
// It returns a NotFound fault for a token that is not good.
func (s *Service) UseBoot(ctx context.Context, token string, key []byte) (ids.Node, error) {
	bad := fault.New(fault.NotFound, "boot-token", "there is no such boot")
	t, found, err := s.Machines.TicketByHash(ctx, hashOf(token))
	if err != nil {
		return ids.Node{}, err
	}
	now := s.Clock.Now()
	switch {
	case !found || t.Purpose != ForService || !now.Before(t.ExpiresAt):
		return ids.Node{}, bad
	case t.UsedAt.IsZero():
	case bytes.Equal(t.UsedBy, key):
		return t.Node, nil
	default:
		return ids.Node{}, bad
	}
	t.UsedAt, t.UsedBy = now, key
	if err := s.Machines.UpdateTicket(ctx, t); err != nil {
		return ids.Node{}, err
	}
	return t.Node, s.Machines.SetStage(ctx, t.Node, StageService, now)
}

// phoneWithin is how long after its seed was made a tenant's system may phone home: image, isolation and the wait for the lease's start lie
// in between.
const phoneWithin = 24 * time.Hour

// PhoneHome makes the address at which the allocation's own system tells that it runs; for a transaction of the caller's. An earlier one of
// the same allocation is worth nothing any more.
func (s *Service) PhoneHome(ctx context.Context, node ids.Node, allocation ids.Allocation, epoch int64) (string, error) {
	now := s.Clock.Now()
	if err := s.Machines.Disarm(ctx, node, ForTenant, now); err != nil {
		return "", err
	}
	token, hash := newToken(phonePrefix)
	t := Ticket{
		ID: ids.Make[ids.Operation](), Node: node, Purpose: ForTenant, Allocation: allocation, Epoch: epoch, Hash: hash, CreatedAt: now, ExpiresAt: now.Add(phoneWithin),
	}
	if err := s.Machines.PutTicket(ctx, t); err != nil {
		return "", err
	}
	return s.NodesURL + PhonePath + token, nil
}

// PhonePath is the path, below the control plane's address for machines, at which tenants' systems phone home.
const PhonePath = "/netboot/v1/phone-home/"

// Phone takes a call. The first one counts; repeats are harmless.
//
// It returns a NotFound fault for a token that is not good.
func (s *Service) Phone(ctx context.Context, token string, call Call) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		t, found, err := s.Machines.TicketByHash(ctx, hashOf(token))
		if err != nil {
			return err
		}
		now := s.Clock.Now()
		if !found || t.Purpose != ForTenant || !now.Before(t.ExpiresAt) {
			return fault.New(fault.NotFound, "phone-home", "nobody waits for this call")
		}
		if !t.UsedAt.IsZero() {
			return nil
		}
		t.UsedAt, t.Call = now, &call
		return s.Machines.UpdateTicket(ctx, t)
	})
	if err != nil {
		return fmt.Errorf("phone home: %w", err)
	}
	return nil
}
