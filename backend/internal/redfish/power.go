package redfish

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/power"
)

// link is a reference to another resource.
type link struct {
	ID string `json:"@odata.id"` //nolint:tagliatelle // Redfish's, as all names in this package
}

// action is something that can be done to a resource.
type action struct {
	Target string `json:"target"`
	Info   string `json:"@Redfish.ActionInfo"` //nolint:tagliatelle // Redfish's
}

// computerSystem is the part of Redfish's ComputerSystem that we read.
//
//nolint:tagliatelle // Redfish's names.
type computerSystem struct {
	link
	Etag         string `json:"@odata.etag"`
	Manufacturer string `json:"Manufacturer"`
	Model        string `json:"Model"`
	SerialNumber string `json:"SerialNumber"`
	UUID         string `json:"UUID"`
	BiosVersion  string `json:"BiosVersion"`
	PowerState   string `json:"PowerState"`
	Boot         struct {
		Enabled string   `json:"BootSourceOverrideEnabled"`
		Target  string   `json:"BootSourceOverrideTarget"`
		Allowed []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
	} `json:"Boot"`
	Actions struct {
		Reset struct {
			action
			Allowed []string `json:"ResetType@Redfish.AllowableValues"`
		} `json:"#ComputerSystem.Reset"`
	} `json:"Actions"`
	SerialConsole      *serialConsole `json:"SerialConsole"`
	LogServices        link           `json:"LogServices"`
	EthernetInterfaces link           `json:"EthernetInterfaces"`
	Bios               link           `json:"Bios"`
}

// find returns the path of the machine's ComputerSystem.
func (c *Client) find(ctx context.Context) (string, error) {
	if c.system != "" {
		return c.system, nil
	}
	paths, err := c.members(ctx, root+"Systems", 2)
	if err != nil {
		return "", err
	}
	if len(paths) != 1 {
		return "", fault.New(fault.Invalid, "bmc-systems", "the BMC manages more or fewer than one machine: say which one (%s)", strings.Join(paths, ", "))
	}
	c.system = paths[0]
	return c.system, nil
}

func (c *Client) readSystem(ctx context.Context) (computerSystem, *answer, error) {
	var s computerSystem
	path, err := c.find(ctx)
	if err != nil {
		return s, nil, err
	}
	answer, err := c.read(ctx, path, &s)
	s.ID = path
	return s, answer, err
}

// State implements power.Controller.
func (c *Client) State(ctx context.Context) (power.State, error) {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return power.Unknown, err
	}
	return stateOf(s.PowerState), nil
}

func stateOf(word string) power.State {
	switch word {
	case "On":
		return power.On
	case "Off":
		return power.Off
	case "PoweringOn", "PoweringOff", "Paused":
		return power.Turning
	default:
		return power.Unknown
	}
}

// resetTypes are Redfish's words for a reset, the best one first. A push of the power button is what some BMCs have for a polite
// shut-down; it is never used to switch anything off for sure, since on a machine that is off it switches it on.
func resetTypes(r power.Reset) []string {
	switch r {
	case power.TurnOn:
		return []string{"On", "ForceOn"}
	case power.ForceOff:
		return []string{"ForceOff"}
	case power.ShutDown:
		return []string{"GracefulShutdown", "PushPowerButton"}
	case power.Restart:
		return []string{"ForceRestart", "PowerCycle", "FullPowerCycle"}
	default:
		return nil
	}
}

// Reset implements power.Controller.
func (c *Client) Reset(ctx context.Context, r power.Reset) error {
	s, _, err := c.readSystem(ctx)
	if err != nil {
		return err
	}
	word, err := c.resetWord(ctx, s, r)
	if err != nil {
		return err
	}
	target := cmp.Or(s.Actions.Reset.Target, s.ID+"/Actions/ComputerSystem.Reset")
	return c.act(ctx, "reset ("+word+")", target, map[string]string{"ResetType": word})
}

// resetWord picks the reset's word from what the BMC allows. One that does not say what it allows gets the specification's first choice.
func (c *Client) resetWord(ctx context.Context, s computerSystem, r power.Reset) (string, error) {
	words := resetTypes(r)
	if len(words) == 0 {
		return "", fault.New(fault.Internal, "reset", "there is no reset %q", r)
	}
	allowed := s.Actions.Reset.Allowed
	if len(allowed) == 0 && s.Actions.Reset.Info != "" {
		var err error
		if allowed, err = c.allowedByInfo(ctx, s.Actions.Reset.Info); err != nil {
			return "", err
		}
	}
	if len(allowed) == 0 {
		return words[0], nil
	}
	for _, w := range words {
		if slices.Contains(allowed, w) {
			return w, nil
		}
	}
	return "", fault.New(fault.Invalid, codeUnsupported, "the BMC cannot %s: it allows %s", strings.ReplaceAll(string(r), "_", " "), strings.Join(allowed, ", "))
}

// allowedByInfo reads the allowed values from the action's description. One that is not there says nothing.
func (c *Client) allowedByInfo(ctx context.Context, path string) ([]string, error) {
	var info struct {
		Parameters []struct {
			Name    string   `json:"Name"`            //nolint:tagliatelle // Redfish's
			Allowed []string `json:"AllowableValues"` //nolint:tagliatelle // Redfish's
		} `json:"Parameters"` //nolint:tagliatelle // Redfish's
	}
	if err := c.get(ctx, path, &info); err != nil {
		return nil, unlessUnsupported(err)
	}
	for _, p := range info.Parameters {
		if p.Name == "ResetType" {
			return p.Allowed, nil
		}
	}
	return nil, nil
}

func unlessUnsupported(err error) error {
	if fault.CodeOf(err) == codeUnsupported {
		return nil
	}
	return err
}

// act posts an action and, when the BMC makes a task of it, waits for that to end.
func (c *Client) act(ctx context.Context, what, target string, body any) error {
	answer, err := c.do(ctx, http.MethodPost, target, body, nil)
	if err != nil {
		return err
	}
	return c.settle(ctx, what, answer)
}

// settle waits until what was asked for is done: at once (200, 201, 204, whatever the body), or by a task (202).
func (c *Client) settle(ctx context.Context, what string, a *answer) error {
	if a.status/100 != 2 {
		return a.fault(what)
	}
	if a.status != http.StatusAccepted {
		return nil
	}
	monitor := c.local(a.header.Get("Location"))
	var t task
	if monitor == "" && json.Unmarshal(a.body, &t) == nil {
		monitor = c.local(t.ID)
	}
	if monitor == "" {
		return nil // accepted, and nothing to follow: what became of it, the machine's state says
	}
	return c.follow(ctx, what, monitor)
}

// task is Redfish's Task.
//
//nolint:tagliatelle // Redfish's names.
type task struct {
	link
	State    string `json:"TaskState"`
	Status   string `json:"TaskStatus"`
	Messages []struct {
		Message string `json:"Message"`
	} `json:"Messages"`
}

// follow reads a task, or its monitor, until it has ended.
func (c *Client) follow(ctx context.Context, what, path string) error {
	pause, most := c.o.Pause, 16*c.o.Pause
	for {
		if err := wait(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, most)
		answer, err := c.do(ctx, http.MethodGet, path, nil, nil)
		switch {
		case err != nil:
			return err
		case answer.status == http.StatusAccepted || answer.busy():
			continue
		case answer.status == http.StatusNotFound || answer.status == http.StatusGone:
			return nil // monitors of finished tasks are taken away; the machine's state says what came of it
		case answer.status/100 != 2:
			return answer.fault(what)
		}
		if ended, err := taskOf(answer.body).ended(what); ended {
			return err
		}
	}
}

// taskOf reads a task. A monitor answers as the action itself would have, once that is done: anything, or nothing.
func taskOf(body []byte) task {
	var t task
	if json.Unmarshal(body, &t) != nil || t.State == "" {
		return task{State: "Completed"}
	}
	return t
}

func (t task) ended(what string) (bool, error) {
	words := ""
	if len(t.Messages) > 0 {
		words = ": " + t.Messages[0].Message
	}
	switch t.State {
	case "Completed":
		if t.Status == "Critical" {
			return true, fault.New(fault.Conflict, codeRefused, "%s: the BMC's task failed%s", what, words)
		}
		return true, nil
	case "Exception", "Killed", "Cancelled", "Interrupted":
		return true, fault.New(fault.Conflict, codeRefused, "%s: the BMC's task ended as %s%s", what, t.State, words)
	default:
		return false, nil
	}
}
