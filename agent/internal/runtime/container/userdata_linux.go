package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/access"
)

// userDataPath is where a tenant finds what was given with the lease. A script is run once, when the tenant is first let in, with its
// output beside it. What is no script, e.g. cloud-init's configuration, is left for the image's own programs: containers boot nothing.
const userDataPath = "/var/lib/leasehold/user-data"

// seedUserData writes user data into a new layer.
func seedUserData(layer, text string, owner int) error {
	dir := layer
	for part := range strings.SplitSeq(strings.Trim(filepath.Dir(userDataPath), "/"), "/") {
		dir = filepath.Join(dir, part)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, owner, owner)); err != nil { //nolint:gosec // as /var is
			return err
		}
	}
	path := filepath.Join(layer, userDataPath)
	return errors.Join(os.WriteFile(path, []byte(text), 0o700), os.Chown(path, owner, owner)) //nolint:gosec // it is a program
}

// runUserData starts the tenant's script and does not wait for it.
func (d *Driver) runUserData(ctx context.Context, p place) error {
	if !strings.HasPrefix(p.UserData, "#!") {
		return nil
	}
	file, err := d.processFile(p, access.Session{Command: "exec " + userDataPath + " >" + userDataPath + ".log 2>&1 </dev/null"})
	if err != nil {
		return err
	}
	defer os.Remove(file) //nolint:errcheck // a left-over is in nobody's way
	if _, err := d.oci.run(ctx, "exec", "--detach", "--process", file, d.id(p)); err != nil {
		return fmt.Errorf("run user data: %w", err)
	}
	return nil
}
