package bmc

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

func resetTypes() []string {
	return []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle", "PushPowerButton"}
}

func resetInfo() object {
	return object{
		"@odata.id": systemPath + "/ResetActionInfo", "Id": "ResetActionInfo", "Name": "Reset Action Info",
		"Parameters": []object{{"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": resetTypes()}},
	}
}

func (c *Controller) reset(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ResetType string `json:"ResetType"` //nolint:tagliatelle // Redfish's
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil || !slices.Contains(resetTypes(), body.ResetType) {
		refuse(w, http.StatusBadRequest, "that is not a type of reset")
		return
	}
	off := slices.Contains([]string{"ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"}, body.ResetType)
	if c.is(RefusesOff) && off {
		c.note("Warning", "refused "+body.ResetType)
		refuse(w, http.StatusConflict, "the power button is locked")
		return
	}
	if !c.is(Lies) && !c.is(FailingTasks) {
		// The machine outlives the request, and so does what is done to it.
		if err := c.apply(context.WithoutCancel(r.Context()), body.ResetType); err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	if c.is(Tasks) || c.is(FailingTasks) {
		c.startTask(w, r)
		return
	}
	c.done(w, r)
}

// apply does a reset. It returns when the power is as it says; what the operating system is asked for takes its own time.
func (c *Controller) apply(ctx context.Context, reset string) error {
	c.power.Lock()
	defer c.power.Unlock()
	switch reset {
	case "On":
		return c.turnOn(ctx)
	case "ForceOff":
		return c.turnOff(ctx)
	case "ForceRestart", "PowerCycle", "GracefulRestart":
		if err := c.turnOff(ctx); err != nil {
			return err
		}
		return c.turnOn(ctx)
	case "PushPowerButton":
		if !c.cfg.Host.On() {
			return c.turnOn(ctx)
		}
		return c.cfg.Host.PressPower(ctx)
	default: // GracefulShutdown
		if !c.cfg.Host.On() {
			return nil
		}
		return c.cfg.Host.PressPower(ctx)
	}
}

func (c *Controller) startTask(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	id := strconv.Itoa(len(c.tasks) + 1)
	c.tasks[id] = 0
	c.mu.Unlock()
	path := base + "/TaskService/Tasks/" + id
	w.Header().Set("Location", path)
	c.answer(w, r, http.StatusAccepted, object{"@odata.id": path, "@odata.type": "#Task.v1_0_0.Task", "Id": id, "Name": "reset", "TaskState": "Running"})
}

// task shows a task, which has ended the second time that it is looked at.
func (c *Controller) task(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	c.mu.Lock()
	looks, known := c.tasks[id]
	if known {
		c.tasks[id]++
	}
	failing := c.odd[FailingTasks]
	c.mu.Unlock()
	if !known {
		refuse(w, http.StatusNotFound, "there is no such task")
		return
	}
	body := object{"@odata.id": r.URL.Path, "Id": id, "Name": "reset", "TaskState": "Running", "TaskStatus": "OK"}
	switch {
	case looks == 0:
	case failing:
		body["TaskState"], body["TaskStatus"] = "Exception", "Critical"
		body["Messages"] = []object{{"Message": "the power supply did not obey"}}
	default:
		body["TaskState"] = "Completed"
	}
	c.answer(w, r, http.StatusOK, body)
}
