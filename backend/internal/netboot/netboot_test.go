package netboot_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/netboot"
	"github.com/leasehold/leasehold/backend/power"
)

// machines answers everybody alike.
type machines struct {
	boot  power.Netboot
	calls []power.Call
}

func (m *machines) Netboot(context.Context, string) (power.Netboot, error) { return m.boot, nil }

func (m *machines) Phone(_ context.Context, _ string, call power.Call) error {
	m.calls = append(m.calls, call)
	return nil
}

func ask(t *testing.T, s *netboot.Server, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	s.Log = slog.New(slog.DiscardHandler)
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer := httptest.NewRecorder()
	s.Handler().ServeHTTP(answer, request)
	return answer
}

func TestAScriptIsNeverMadeOfMoreThanWords(t *testing.T) {
	t.Parallel()
	good := power.Netboot{Name: "metal-1", Token: "lhb_x", Server: "https://control.test"}
	script := ask(t, &netboot.Server{Machines: &machines{boot: good}, Console: "console=ttyS0"}, http.MethodGet, "/netboot/v1/machines/52-54-00-00-00-01/boot.ipxe", "")
	require.Equal(t, http.StatusOK, script.Code)
	require.True(t, strings.HasPrefix(script.Body.String(), "#!ipxe\n"))
	require.Contains(t, script.Body.String(), "leasehold.server=https://control.test leasehold.node=metal-1 leasehold.token=lhb_x\n")
	require.Equal(t, "no-store", script.Header().Get("Cache-Control"))
	for _, evil := range []string{"a init=/bin/sh", "a\nshell", "a && reboot", "", "${net0/mac}"} {
		boot := good
		boot.Name = evil
		answer := ask(t, &netboot.Server{Machines: &machines{boot: boot}}, http.MethodGet, "/netboot/v1/machines/52-54-00-00-00-01/boot.ipxe", "")
		require.Equal(t, http.StatusInternalServerError, answer.Code, "%q", evil)
		require.Empty(t, answer.Body.String())
	}
}

func TestOnlyTheDirectorysOwnFilesAreServed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600))
	served := filepath.Join(dir, "served")
	require.NoError(t, os.Mkdir(served, 0o700))
	for _, name := range []string{"vmlinuz", "manifest.json", ".hidden", "debian-12.raw"} {
		require.NoError(t, os.WriteFile(filepath.Join(served, name), []byte("content of "+name), 0o600))
	}
	s := &netboot.Server{Machines: &machines{}, ServiceOS: served, Images: served}
	for path, want := range map[string]int{
		"/netboot/v1/service-os/vmlinuz": 200, "/netboot/v1/service-os/manifest.json": 404, "/netboot/v1/images/debian-12.raw": 200,
		"/netboot/v1/images/.hidden": 404, "/netboot/v1/images/": 404, "/netboot/v1/images/..%2fsecret": 404, "/netboot/v1/images/%2e%2e": 404,
		"/netboot/v1/images/nothing": 404, "/netboot/v1/": 404,
	} {
		answer := ask(t, s, http.MethodGet, path, "")
		require.Equal(t, want, answer.Code, path)
		require.NotContains(t, answer.Body.String(), "secret", path)
	}
	require.Equal(t, http.StatusNotFound, ask(t, &netboot.Server{Machines: &machines{}}, http.MethodGet, "/netboot/v1/images/debian-12.raw", "").Code)
}

func TestACallIsBoundedAndItsKeysAreKeys(t *testing.T) {
	t.Parallel()
	m := &machines{}
	s := &netboot.Server{Machines: m}
	key := "ssh-ed25519+AAAAC3NzaC1lZDI1NTE5AAAAIFDSvRZWFCUWbNMBkE3Tq5x2rrhTinOd2PHs5Pyv5Dei"
	require.Equal(t, http.StatusOK, ask(t, s, http.MethodPost, "/netboot/v1/phone-home/t", "hostname="+strings.Repeat("x", 1000)+"&pub_key_ed25519="+key+"+root%40x&pub_key_rsa=evil").Code)
	require.Len(t, m.calls[0].HostKeys, 1)
	require.NotContains(t, m.calls[0].HostKeys[0], "root", "a comment is no part of a key")
	require.Len(t, m.calls[0].Hostname, 253)
	require.Equal(t, http.StatusBadRequest, ask(t, s, http.MethodPost, "/netboot/v1/phone-home/t", strings.Repeat("x", 1<<20)).Code)
	require.Equal(t, http.StatusMethodNotAllowed, ask(t, s, http.MethodGet, "/netboot/v1/phone-home/t", "").Code)
}
