package httpapi

import "github.com/gin-gonic/gin"

// Agent serves the agents' protocol under /agent/v1. The routes are no part of openapi.yaml: agent/protocol is their contract.
type Agent struct{}

// mount adds the routes to a group that has request ids, the access log, recovery and a body limit, and no authentication.
func (Agent) mount(gin.IRouter) {}
