// Package netboot is what machines that boot from the network talk to: an iPXE script for a machine that is to boot the service OS, the
// service OS itself, disk images, and the call with which a tenant's system says that it runs. None of it is part of the public API, and a
// data centre opens it to its machines' own network only: what a machine is told there, its neighbours could be told too.
package netboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"text/template"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/power"
)

// Prefix is the path below which all of it lies.
const Prefix = "/netboot/v1"

// Machines answers machines. Package power implements it.
type Machines interface {
	// Netboot returns a NotFound fault for a machine that is not known, and a Conflict fault for one that is to boot from its disk.
	Netboot(ctx context.Context, mac string) (power.Netboot, error)
	// Phone returns a NotFound fault for a token that is not good.
	Phone(ctx context.Context, token string, call power.Call) error
}

// Server is the handler.
type Server struct {
	Machines Machines
	// ServiceOS is the directory with vmlinuz and initramfs.gz, Images that with disk images; "": there are none.
	ServiceOS, Images string
	// Console is what is added to the service OS's command line, e.g. "console=ttyS0".
	Console string
	Log     *slog.Logger
}

// Handler returns the routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Prefix+"/boot.ipxe", first)
	mux.HandleFunc("GET "+Prefix+"/machines/{mac}/boot.ipxe", s.script)
	mux.HandleFunc("GET "+Prefix+"/service-os/{file}", s.file(s.ServiceOS, "vmlinuz", "initramfs.gz"))
	mux.HandleFunc("GET "+Prefix+"/images/{file}", s.file(s.Images))
	mux.HandleFunc("POST "+power.PhonePath+"{token}", s.phone)
	return mux
}

// first is the script that every machine gets from its network: it asks for its own. With several cards iPXE tries that which it booted from.
func first(w http.ResponseWriter, _ *http.Request) {
	text(w, http.StatusOK, "#!ipxe\nchain machines/${netX/mac:hexhyp}/boot.ipxe || chain machines/${net0/mac:hexhyp}/boot.ipxe || exit\n")
}

// fromDisk has a machine go on with its next boot device.
const fromDisk = "#!ipxe\necho Leasehold: %s\nexit\n"

// toService boots the service OS. Each word of the command line is ours, and is checked to be one.
var toService = template.Must(template.New("").Parse("#!ipxe\n" + //nolint:gochecknoglobals // parsed once
	"kernel ../../service-os/vmlinuz initrd=initramfs.gz {{.Console}} panic=30 quiet leasehold.server={{.Server}} leasehold.node={{.Name}} " +
	"leasehold.token={{.Token}}{{if .Insecure}} leasehold.insecure=1{{end}}\n" +
	"initrd --name initramfs.gz ../../service-os/initramfs.gz\nboot\n"))

func (s *Server) script(w http.ResponseWriter, r *http.Request) {
	mac, err := net.ParseMAC(r.PathValue("mac"))
	if err != nil {
		text(w, http.StatusNotFound, fmt.Sprintf(fromDisk, "that is no MAC address"))
		return
	}
	boot, err := s.Machines.Netboot(r.Context(), mac.String())
	switch {
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Conflict):
		s.Log.InfoContext(r.Context(), "a machine asked what to boot and goes on with its disk", "mac", mac.String(), "error", err)
		text(w, http.StatusOK, fmt.Sprintf(fromDisk, "nothing to boot from the network"))
		return
	case err != nil:
		s.Log.WarnContext(r.Context(), "a machine cannot be told what to boot", "mac", mac.String(), "error", err)
		text(w, http.StatusServiceUnavailable, "")
		return
	}
	var script bytes.Buffer
	if err := s.render(&script, boot); err != nil {
		s.Log.ErrorContext(r.Context(), "a machine cannot be told what to boot", "node", boot.Name, "error", err)
		text(w, http.StatusInternalServerError, "")
		return
	}
	s.Log.InfoContext(r.Context(), "a machine boots the service OS", "node", boot.Name, "mac", mac.String())
	text(w, http.StatusOK, script.String())
}

// errWord says that something would not be one word of a command line.
var errWord = errors.New("it is no word of a command line")

func (s *Server) render(script *bytes.Buffer, boot power.Netboot) error {
	for _, word := range []string{boot.Name, boot.Token, boot.Server} {
		if word == "" || strings.ContainsAny(word, " \t\r\n\"'$|&;") {
			return fmt.Errorf("%q: %w", word, errWord)
		}
	}
	return toService.Execute(script, struct {
		power.Netboot
		Console string
	}{boot, s.Console})
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) //nolint:errcheck // whoever hung up does not want it
}

// file serves a directory's files: only those, when any are named. There is no listing, and nothing above or below the directory.
func (s *Server) file(dir string, only ...string) http.HandlerFunc {
	plain := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("file")
		known := len(only) == 0
		for _, o := range only {
			known = known || o == name
		}
		if dir == "" || !known || !plain.MatchString(name) {
			http.NotFound(w, r)
			return
		}
		// A machine may take long over an image; the server's own limit is for people.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) //nolint:errcheck // then the limit stays
		http.ServeFileFS(w, r, os.DirFS(dir), name)
	}
}

// maxCall bounds a call, in bytes; a system has a few host keys.
const maxCall = 64 << 10

// phone takes what cloud-init's phone_home posts.
func (s *Server) phone(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxCall)
	if err := r.ParseForm(); err != nil {
		text(w, http.StatusBadRequest, "that is no form\n")
		return
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	call := power.Call{From: host, Hostname: clip(r.PostFormValue("hostname")), HostKeys: []string{}}
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		if key, ok := hostKey(r.PostFormValue("pub_key_" + kind)); ok {
			call.HostKeys = append(call.HostKeys, key)
		}
	}
	err = s.Machines.Phone(r.Context(), r.PathValue("token"), call)
	switch {
	case fault.Is(err, fault.NotFound):
		text(w, http.StatusNotFound, "nobody waits for this call\n")
	case err != nil:
		s.Log.WarnContext(r.Context(), "a system's call cannot be taken", "error", err)
		text(w, http.StatusServiceUnavailable, "")
	default:
		text(w, http.StatusOK, "welcome\n")
	}
}

// clip bounds what a tenant's system says of itself.
func clip(s string) string {
	const most = 253
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// hostKey takes a public key in the form of authorized_keys, without its comment.
func hostKey(line string) (string, bool) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), true
}
