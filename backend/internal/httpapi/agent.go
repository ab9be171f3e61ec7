package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

// Agent serves the agents' protocol under /agent/v1. The routes are no part of openapi.yaml: agent/protocol is their contract. A
// member that we do not know is ignored, since an agent may be newer than we are.
type Agent struct {
	Fleet *fleet.Service
	Clock clock.Clock
}

// Bounds of bodies as they travel, in bytes. A fabric's results hold the tables of every port that a sweep was about, twice.
const (
	maxAgentCall      = 1 << 20
	maxAgentInventory = 4 << 20
	maxFabricResult   = maxAgentBody
	// maxExpansion bounds how much larger a body may be once it is decompressed.
	maxExpansion = 8
)

// agentTimeout bounds a call that does not wait.
const agentTimeout = 30 * time.Second

// mount adds the routes, under the paths that package protocol names, to a group that has request ids, the access log, recovery and a body limit, and no authentication.
func (a Agent) mount(r gin.IRouter) {
	if a.Fleet == nil {
		return // this process serves no agents
	}
	r.Use(a.tellTime)
	under := func(path string) string {
		return strings.ReplaceAll(strings.TrimPrefix(path, "/agent/v1"), "{id}", ":id")
	}
	r.POST(under(protocol.PathEnroll), limitBody(maxAgentCall), boundAgentCall, a.enroll)
	r.PUT(under(protocol.PathInventory), boundAgentCall, a.signed(maxAgentInventory, a.inventory))
	r.POST(under(protocol.PathHeartbeat), boundAgentCall, a.signed(maxAgentCall, a.heartbeat))
	r.GET(under(protocol.PathOperations), a.signed(maxAgentCall, a.poll))
	r.POST(under(protocol.PathProgress), boundAgentCall, a.signed(maxAgentCall, a.progress))
	r.POST(under(protocol.PathResult), boundAgentCall, a.signed(maxFabricResult, a.result))
}

// tellTime puts our time on every answer, a refusal included: agents keep the offset to it.
func (a Agent) tellTime(c *gin.Context) {
	c.Header(protocol.HeaderServerTime, protocol.FormatServerTime(a.Clock.Now()))
	c.Next()
}

func (a Agent) enroll(c *gin.Context) {
	var request protocol.EnrollRequest
	wire, err := readAgentBody(c, maxAgentCall)
	if err == nil {
		err = decodeAgentBody(c, wire, maxAgentCall, &request)
	}
	if err != nil {
		refuse(c, err)
		return
	}
	reply, err := a.Fleet.Enroll(c.Request.Context(), request)
	answerAgent(c, reply, err)
}

func (a Agent) inventory(c *gin.Context, caller fleet.Caller, body []byte) {
	var report protocol.Inventory
	if err := decodeAgentBody(c, body, maxAgentInventory, &report); err != nil {
		refuse(c, err)
		return
	}
	reply, err := a.Fleet.Inventory(c.Request.Context(), caller, report)
	answerAgent(c, reply, err)
}

func (a Agent) heartbeat(c *gin.Context, caller fleet.Caller, body []byte) {
	var beat protocol.Heartbeat
	if err := decodeAgentBody(c, body, maxAgentCall, &beat); err != nil {
		refuse(c, err)
		return
	}
	reply, err := a.Fleet.Heartbeat(c.Request.Context(), caller, beat)
	answerAgent(c, reply, err)
}

func (a Agent) poll(c *gin.Context, caller fleet.Caller, _ []byte) {
	wait := time.Duration(0)
	if text := c.Query("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			refuse(c, fault.New(fault.Invalid, "wait", "wait is a duration, e.g. 30s"))
			return
		}
	}
	control := http.NewResponseController(c.Writer)
	if err := control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		refuse(c, err)
		return
	}
	found, err := a.Fleet.Poll(c.Request.Context(), caller, wait)
	answerAgent(c, protocol.Operations{Operations: found}, err)
}

func (a Agent) progress(c *gin.Context, caller fleet.Caller, body []byte) {
	var progress protocol.Progress
	id, err := operationID(c)
	if err == nil {
		err = decodeAgentBody(c, body, maxAgentCall, &progress)
	}
	if err == nil {
		err = a.Fleet.Progress(c.Request.Context(), caller, id, progress)
	}
	answerAgent(c, nil, err)
}

func (a Agent) result(c *gin.Context, caller fleet.Caller, body []byte) {
	var result protocol.Result
	id, err := operationID(c)
	if err == nil {
		err = decodeAgentBody(c, body, maxFabricResult, &result)
	}
	if err == nil {
		err = a.Fleet.Complete(c.Request.Context(), caller, id, result)
	}
	answerAgent(c, nil, err)
}

// operationID reads the path's id; one that cannot be is not found, like one that is not there.
func operationID(c *gin.Context) (ids.Operation, error) {
	id, err := ids.Read[ids.Operation](c.Param("id"))
	if err != nil || id.IsZero() {
		return ids.Operation{}, fault.New(fault.NotFound, "operation-not-found", "there is no such operation")
	}
	return id, nil
}

// answerAgent answers with the reply, 204 when there is none, or with the error's problem.
func answerAgent(c *gin.Context, reply any, err error) {
	switch {
	case err != nil:
		refuse(c, err)
	case reply == nil:
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
	default:
		c.JSON(http.StatusOK, reply)
	}
}
