package delivery

import "time"

// Policy bounds how long things may take and how often they are tried.
type Policy struct {
	PickUpWithin  time.Duration // an agent that does not pick up work by then is offline
	PrepareWithin time.Duration // imaging and preflight
	// SilentAfter is how long a node may send no heartbeat before its work on the way to a running lease goes to another one.
	SilentAfter time.Duration
	QuickWithin time.Duration // keys in, keys out, reading tables
	WipeWithin  time.Duration
	// BootWithin is how long a machine that is leased whole may take from a command to its BMC to a running system, OffWithin to no power.
	BootWithin time.Duration
	OffWithin  time.Duration
	// Attempts is how often a node is asked again on the way to a running lease; UndoAttempts, on the way back, is larger, since
	// what cannot be undone takes a node off the market.
	Attempts     int
	UndoAttempts int
	// Backoff is the pause before the second attempt; it doubles, up to BackoffCap.
	Backoff    time.Duration
	BackoffCap time.Duration
	// DeliverWithin is how late, counted from its start, a lease may become active; after that it is released and not billed. It
	// never reaches past the lease's end.
	DeliverWithin time.Duration
	// ClearWithin is how long a partition may take to be seen clear before its nodes are quarantined.
	ClearWithin time.Duration
	// Recheck is when to look again at something that nobody nudges about.
	Recheck time.Duration
}

// DefaultPolicy is for real machines: imaging and sanitizing take their time.
func DefaultPolicy() Policy {
	return Policy{
		PickUpWithin: 60 * time.Second, PrepareWithin: 20 * time.Minute, SilentAfter: 60 * time.Second, QuickWithin: 2 * time.Minute, WipeWithin: 2 * time.Hour,
		BootWithin: 20 * time.Minute, OffWithin: 5 * time.Minute,
		Attempts: 3, UndoAttempts: 6, Backoff: 2 * time.Second, BackoffCap: time.Minute,
		DeliverWithin: 30 * time.Minute, ClearWithin: 10 * time.Minute, Recheck: 5 * time.Second,
	}
}

// pause is how long to wait after the n-th failure, n ≥ 1.
func (p Policy) pause(n int) time.Duration {
	pause := p.Backoff
	for range n - 1 {
		if pause *= 2; pause >= p.BackoffCap {
			return p.BackoffCap
		}
	}
	return pause
}
