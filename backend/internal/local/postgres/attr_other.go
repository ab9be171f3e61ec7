//go:build !linux

package postgres

import "syscall"

// notRoot changes nothing: outside Linux, PostgreSQL must be started by an ordinary user.
func notRoot() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
