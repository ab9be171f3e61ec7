package postgres

import (
	"os"
	"syscall"
)

// ordinary is any user number but 0, as seen inside the namespace; nothing on disk gets it.
const ordinary = 65534

// notRoot makes a child an ordinary user in its own eyes. PostgreSQL refuses to run as root; a user namespace with the one entry
// "65534 inside is 0 outside" satisfies it, while its files keep belonging to root and no second user is needed.
func notRoot() *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}
	}
	only := []syscall.SysProcIDMap{{ContainerID: ordinary, HostID: 0, Size: 1}}
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: only, GidMappings: only}
}
