package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ControlSocket is the name of the socket in the state directory, on which the site's own user injects faults.
const ControlSocket = "control.sock"

// controlTimeout bounds one exchange.
const controlTimeout = 10 * time.Second

// Injection is a fault for one machine.
type Injection struct {
	Node   string `json:"node"`
	Fault  string `json:"fault"`
	Device int    `json:"device"` // bay or rail, from 0
}

// reply is the answer to an injection.
type reply struct {
	Error string `json:"error,omitempty"`
}

// Faults lists what can be injected, with what it does.
func Faults() map[string]string {
	return map[string]string{
		"xid79":         "the GPU falls off the bus",
		"ecc":           "the GPU has an uncorrectable memory error",
		"ib-down":       "the adapter's link goes down",
		"unreachable":   "the agent's line to the control plane is cut",
		"wipe-fails":    "wipes leave the data where it is",
		"prepare-fails": "preparations fail",
		"slow":          "work takes five times as long",
		"clear":         "everything is good again",
	}
}

// Inject injects a fault into a site that runs in stateDir.
func Inject(ctx context.Context, stateDir string, injection Injection) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(stateDir, ControlSocket))
	if err != nil {
		return fmt.Errorf("reach the simulated site: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer has come, or an error is returned
	if err := json.NewEncoder(conn).Encode(injection); err != nil {
		return fmt.Errorf("send fault: %w", err)
	}
	var answer reply
	if err := json.NewDecoder(io.LimitReader(conn, 1<<16)).Decode(&answer); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// listenControl takes the place of a socket that an earlier process left behind; the directory's lock says that it is gone.
func listenControl(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old control socket: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for control: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect control socket: %w", err), listener.Close())
	}
	return listener, nil
}

func (r *run) serveControl(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) //nolint:errcheck // accept fails then, which is the point
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept control connection: %w", err)
		}
		r.control(conn)
	}
}

func (r *run) control(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the peer has its answer
	if err := conn.SetDeadline(r.Now().Add(controlTimeout)); err != nil {
		return
	}
	var injection Injection
	var answer reply
	err := json.NewDecoder(io.LimitReader(conn, 1<<16)).Decode(&injection)
	if err == nil {
		err = r.inject(injection)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(answer) //nolint:errcheck // the peer hung up
}

func (r *run) inject(i Injection) error {
	v := r.boxes[i.Node]
	if v == nil {
		return fmt.Errorf("no node %q on this site", i.Node)
	}
	if i.Device < 0 || i.Device >= len(v.inventory.GPUs) || (i.Fault == "ib-down" && i.Device >= len(v.inventory.HCAs)) {
		return fmt.Errorf("node %s has no device %d", i.Node, i.Device)
	}
	gpu := v.inventory.GPUs[i.Device].UUID
	set := func(change func(*faults)) {
		v.mu.Lock()
		defer v.mu.Unlock()
		change(&v.faults)
	}
	switch i.Fault {
	case "xid79":
		v.gpus.Lose(gpu)
	case "ecc":
		v.gpus.BreakMemory(gpu)
	case "ib-down":
		v.ports.Cut(v.inventory.HCAs[i.Device].Ports[0].GUID)
	case "unreachable":
		set(func(f *faults) { f.unreachable = true })
	case "wipe-fails":
		for _, g := range v.inventory.GPUs {
			v.gpus.FailWipes(g.UUID)
		}
		set(func(f *faults) { f.wipeFails = true })
	case "prepare-fails":
		set(func(f *faults) { f.prepareFails = true })
	case "slow":
		set(func(f *faults) { f.slow = true })
	case "clear":
		v.gpus.Heal()
		v.ports.Heal()
		set(func(f *faults) { *f = faults{} })
	default:
		return fmt.Errorf("unknown fault %q; known are %s", i.Fault, strings.Join(faultNames(), ", "))
	}
	r.Log.Warn("fault injected", "node", i.Node, "fault", i.Fault, "device", i.Device)
	return nil
}

func faultNames() []string {
	var names []string
	for name := range Faults() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
