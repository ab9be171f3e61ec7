package opensm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Standby is another host's OpenSM, which takes over when ours is gone. What it does then follows from its own partition file, so it is given
// every set; one that missed a set brings released tenants back.
type Standby interface {
	// Name is what people call it.
	Name() string
	// Give puts a copy of the file in place there, in one step, and signals that OpenSM. It may be asked twice.
	Give(ctx context.Context, partitionsFile string) error
}

// giveWithin bounds one hand-over to a standby.
const giveWithin = 20 * time.Second

// Program is a standby that an operator's program reaches, e.g. by scp and ssh. It is called with the path of the file, must put a copy in
// place on the standby's host in one step (a rename), send that OpenSM a SIGHUP, and end with status 0 when both are done.
type Program string

// Name implements Standby.
func (p Program) Name() string { return filepath.Base(string(p)) }

// Give implements Standby.
func (p Program) Give(ctx context.Context, partitionsFile string) error {
	ctx, cancel := context.WithTimeout(ctx, giveWithin)
	defer cancel()
	said, err := exec.CommandContext(ctx, string(p), partitionsFile).CombinedOutput() //nolint:gosec // the operator's own program
	if err == nil {
		return nil
	}
	words := strings.Join(strings.Fields(string(said)), " ")
	const most = 200
	return fmt.Errorf("%w: %s", err, words[:min(len(words), most)])
}

// giveStandbys hands the file in place to every standby that does not have it, and returns how many have it. One that cannot be reached does not
// hold up the change, which may be a revocation; it is a false item of posture until it has been given the file.
func (d *Driver) giveStandbys(ctx context.Context) int {
	d.handing.Lock()
	defer d.handing.Unlock()
	d.mu.Lock()
	text := d.memory.Text
	d.mu.Unlock()
	if len(d.config.Standbys) == 0 || text == "" {
		return 0
	}
	in := 0
	for _, standby := range d.config.Standbys {
		err := error(nil)
		if !d.standbyHas(standby, text) {
			err = d.give(ctx, standby, text)
		}
		if err == nil {
			in++
		}
	}
	return in
}

// give hands a copy of its own over: the file in place may be about to change.
func (d *Driver) give(ctx context.Context, standby Standby, text string) error {
	file := filepath.Join(d.config.StateDir, standbyFile)
	err := durable.WriteFile(file, []byte(text), fileMode)
	if err == nil {
		err = standby.Give(ctx, file)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given[standby.Name()] = handedOver{text, err}
	return err
}

// standbyFile is the copy that standbys are given, in the state directory.
const standbyFile = "partitions.standby.conf"

// handedOver is the last hand-over to a standby.
type handedOver struct {
	text string
	err  error
}

func (d *Driver) standbyHas(standby Standby, text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, ever := d.given[standby.Name()]
	return ever && last.err == nil && last.text == text
}

// standbysInStep judges whether every standby was given the set in place.
func (d *Driver) standbysInStep() protocol.PostureCheck {
	if len(d.config.Standbys) == 0 {
		return protocol.PostureCheck{Verdict: protocol.True, Detail: "there is no standby"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var behind []string
	for _, standby := range d.config.Standbys {
		last, ever := d.given[standby.Name()]
		switch {
		case !ever:
			return protocol.PostureCheck{Verdict: protocol.Unknown, Detail: standby.Name() + " was given no set since this agent started"}
		case last.err != nil:
			behind = append(behind, standby.Name()+": "+last.err.Error())
		case last.text != d.memory.Text:
			behind = append(behind, standby.Name()+" has an older set")
		}
	}
	return verdict(len(behind) == 0, "a standby that takes over now brings an older set back: "+strings.Join(behind, "; "))
}

// tell has our OpenSM read the file. When it is gone and a standby was given the file, that one has been told already.
func (d *Driver) tell(ctx context.Context, standbys int) error {
	err := d.signal(ctx)
	var refusal *operation.Refusal
	if standbys > 0 && errors.As(err, &refusal) && refusal.Code == fabric.CodeManagerUnavailable {
		return nil
	}
	return err
}

// watching returns the reader that waits for ports. Without our OpenSM there is nothing to wait for, unless a standby was given the file.
func (d *Driver) watching(standbys int) fabric.Reader {
	if standbys == 0 {
		return d.watch
	}
	return func(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
		return d.read(ctx, ports), ctx.Err()
	}
}
