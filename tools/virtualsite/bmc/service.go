package bmc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object.
type object = map[string]any

const (
	base       = "/redfish/v1"
	systemPath = base + "/Systems/1"
)

// Handler is the Redfish service.
func (c *Controller) Handler() http.Handler {
	mux := http.NewServeMux()
	show := func(path string, body func() object) {
		mux.HandleFunc("GET "+path+"/{$}", func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, http.StatusOK, body()) })
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, http.StatusOK, body()) })
	}
	show(base, c.serviceRoot)
	for path, members := range collections() {
		show(path, func() object { return list(path, members) })
	}
	show(systemPath, c.system)
	show(systemPath+"/ResetActionInfo", resetInfo)
	show(systemPath+"/EthernetInterfaces/1", c.nic)
	show(systemPath+"/Bios", bios)
	show(systemPath+"/LogServices/SEL", func() object {
		return object{"@odata.id": systemPath + "/LogServices/SEL", "Id": "SEL", "Name": "SEL", "Entries": ref(systemPath + "/LogServices/SEL/Entries")}
	})
	show(systemPath+"/LogServices/SEL/Entries", c.entries)
	show(base+"/Chassis/1", c.chassis)
	show(base+"/Managers/1", c.manager)
	show(base+"/UpdateService", func() object {
		return object{"@odata.id": base + "/UpdateService", "Id": "UpdateService", "Name": "Update Service", "FirmwareInventory": ref(base + "/UpdateService/FirmwareInventory")}
	})
	show(base+"/UpdateService/FirmwareInventory/BMC", func() object {
		return object{"@odata.id": base + "/UpdateService/FirmwareInventory/BMC", "Id": "BMC", "Name": "BMC firmware", "Version": "1.0"}
	})
	show(base+"/SessionService", sessionService)
	mux.HandleFunc("GET "+base+"/TaskService/Tasks/{id}", c.task)
	mux.HandleFunc("POST "+base+"/SessionService/Sessions", c.logIn)
	mux.HandleFunc("DELETE "+base+"/SessionService/Sessions/{id}", c.logOut)
	mux.HandleFunc("PATCH "+systemPath, c.patch)
	mux.HandleFunc("POST "+systemPath+"/Actions/ComputerSystem.Reset", c.reset)
	mux.HandleFunc("POST "+systemPath+"/Bios/Actions/Bios.ResetBios", func(w http.ResponseWriter, r *http.Request) {
		c.note("OK", "BIOS settings are reset at the next boot")
		c.done(w, r)
	})
	mux.HandleFunc("PATCH "+systemPath+"/Bios/Settings", func(w http.ResponseWriter, r *http.Request) {
		c.note("OK", "BIOS settings change at the next boot")
		c.done(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "there is no such resource")
	})
	return c.guard(mux)
}

func collections() map[string][]string {
	return map[string][]string{
		base + "/Systems":                         {systemPath},
		base + "/Chassis":                         {base + "/Chassis/1"},
		base + "/Managers":                        {base + "/Managers/1"},
		base + "/UpdateService/FirmwareInventory": {base + "/UpdateService/FirmwareInventory/BMC"},
		systemPath + "/EthernetInterfaces":        {systemPath + "/EthernetInterfaces/1"},
		systemPath + "/LogServices":               {systemPath + "/LogServices/SEL"},
		base + "/SessionService/Sessions":         {},
		base + "/Managers/1/LogServices":          {},
		base + "/TaskService/Tasks":               {},
	}
}

func list(path string, members []string) object {
	refs := []object{}
	for _, m := range members {
		refs = append(refs, ref(m))
	}
	return object{"@odata.id": path, "Name": path[strings.LastIndex(path, "/")+1:], "Members": refs, "Members@odata.count": len(refs)}
}

func ref(path string) object { return object{"@odata.id": path} }

// guard slows down, and lets in who has a right to be: everybody to the service root, and who logs in.
func (c *Controller) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.is(Slow) && !pause(r.Context(), c.cfg.Pause) {
			return
		}
		path := strings.TrimSuffix(r.URL.Path, "/")
		open := path == base || path == "/redfish" || r.Method == http.MethodPost && path == base+"/SessionService/Sessions"
		if !open && !c.known(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="bmc"`)
			refuse(w, http.StatusUnauthorized, "log in first")
			return
		}
		if r.Method == http.MethodGet && c.isBusyNow() {
			w.Header().Set("Retry-After", "0")
			refuse(w, http.StatusServiceUnavailable, "the BMC is busy")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Controller) isBusyNow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	return c.odd[Busy] && c.reads%2 == 0
}

func (c *Controller) known(r *http.Request) bool {
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		return c.knowsToken(token)
	}
	user, password, ok := r.BasicAuth()
	return ok && c.isUser(user, password)
}

func (c *Controller) isUser(user, password string) bool {
	return subtle.ConstantTimeCompare([]byte(user+"\n"+password), []byte(c.cfg.User+"\n"+c.cfg.Password)) == 1
}

// usesOfLostSession is after how many requests a session is lost, where they are.
const usesOfLostSession = 2

func (c *Controller) knowsToken(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.sessions {
		if subtle.ConstantTimeCompare([]byte(s.token), []byte(token)) != 1 {
			continue
		}
		if s.uses++; c.odd[LosesSessions] && s.uses > usesOfLostSession {
			delete(c.sessions, id)
			return false
		}
		return true
	}
	return false
}

func (c *Controller) logIn(w http.ResponseWriter, r *http.Request) {
	if c.is(NoSessions) {
		refuse(w, http.StatusNotFound, "there is no session service")
		return
	}
	var body struct {
		UserName string `json:"UserName"` //nolint:tagliatelle // Redfish's
		Password string `json:"Password"` //nolint:tagliatelle // Redfish's
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil || !c.isUser(body.UserName, body.Password) {
		refuse(w, http.StatusUnauthorized, "the name or the password is wrong")
		return
	}
	token := rand.Text()
	id := rand.Text()[:8]
	c.mu.Lock()
	c.sessions[id] = &session{token: token}
	c.mu.Unlock()
	path := base + "/SessionService/Sessions/" + id
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", path)
	c.answer(w, r, http.StatusCreated, object{"@odata.id": path, "@odata.type": "#Session.v1_0_0.Session", "Id": id, "Name": "session", "UserName": body.UserName})
}

func (c *Controller) logOut(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	delete(c.sessions, r.PathValue("id"))
	c.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// Sessions counts the open ones.
func (c *Controller) Sessions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions)
}

// answer writes JSON; answers to what changes something may be empty where bodies are.
func (c *Controller) answer(w http.ResponseWriter, r *http.Request, status int, body object) {
	if tag, ok := body["@odata.etag"].(string); ok {
		w.Header().Set("ETag", tag)
	}
	w.Header().Set("OData-Version", "4.0")
	if r.Method != http.MethodGet && c.is(EmptyBodies) {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errcheck // whoever hung up does not want it
}

// done answers that something was done.
func (c *Controller) done(w http.ResponseWriter, r *http.Request) {
	if c.is(EmptyBodies) {
		w.WriteHeader(http.StatusOK)
		return
	}
	c.answer(w, r, http.StatusOK, object{"@Message.ExtendedInfo": []object{{"MessageId": "Base.1.8.Success", "Message": "done"}}})
}

func refuse(w http.ResponseWriter, status int, words string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"error": object{ //nolint:errcheck // likewise
		"code": "Base.1.8.GeneralError", "message": words,
		"@Message.ExtendedInfo": []object{{"MessageId": "Base.1.8.GeneralError", "Message": words}},
	}})
}

func (c *Controller) patch(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Boot struct {
			Enabled string `json:"BootSourceOverrideEnabled"` //nolint:tagliatelle // Redfish's
			Target  string `json:"BootSourceOverrideTarget"`  //nolint:tagliatelle // Redfish's
		} `json:"Boot"` //nolint:tagliatelle // Redfish's
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "that is not JSON")
		return
	}
	c.mu.Lock()
	status, words := c.setBoot(body.Boot.Enabled, body.Boot.Target, r.Header.Get("If-Match"))
	c.mu.Unlock()
	if status != http.StatusOK {
		refuse(w, status, words)
		return
	}
	c.answer(w, r, http.StatusOK, c.system())
}

// setBoot changes the boot override. The caller holds the lock.
func (c *Controller) setBoot(enabled, target, match string) (int, string) {
	switch {
	case match == "" && c.odd[WantsEtag]:
		return http.StatusPreconditionRequired, "say which version you change (If-Match)"
	case match != "" && match != "*" && match != c.etag():
		return http.StatusPreconditionFailed, "somebody else has changed it"
	}
	next := c.boot
	if enabled != "" {
		next.Enabled = enabled
	}
	if target != "" {
		next.Target = target
	}
	if !slices.Contains([]string{"Disabled", "Once", "Continuous"}, next.Enabled) || !slices.Contains([]string{"None", "Pxe", "Hdd"}, next.Target) {
		return http.StatusBadRequest, "the boot override is not one of the allowed values"
	}
	if !c.odd[IgnoresBoot] {
		c.boot = next
		c.version++
	}
	return http.StatusOK, ""
}

func (c *Controller) etag() string { return `W/"` + strconv.Itoa(c.version) + `"` }
