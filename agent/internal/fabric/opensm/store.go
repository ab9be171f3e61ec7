package opensm

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// fileMode lets OpenSM read the file whoever it runs as.
const fileMode = 0o644

// Prepare puts a file without tenants in place if there is none. OpenSM must not be started without.
func Prepare(path string) error {
	switch _, err := os.Stat(path); {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("prepare partition file: %w", err)
	}
	return writeFile(path, file{})
}

// errNoFile means that there is no partition file: OpenSM makes everybody a full member.
var errNoFile = errors.New("there is no partition file")

// readFile reads the file in place. A file that is not of the strict form is a *parseError.
func readFile(path string) (file, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the configured path
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, errNoFile
	}
	if err != nil {
		return file{}, fmt.Errorf("read partition file: %w", err)
	}
	return parse(text)
}

// writeFile replaces the file in one step. What is written is first read as OpenSM's stricter sibling would, and must say what
// was meant.
func writeFile(path string, f file) error {
	text := f.normal().text()
	again, err := parse(text)
	if err != nil {
		return fmt.Errorf("check partition file before it is put in place: %w", err)
	}
	if !bytes.Equal(again.normal().text(), text) {
		return errors.New("check partition file before it is put in place: it does not say what was meant")
	}
	if err := durable.WriteFile(path, text, fileMode); err != nil {
		return fmt.Errorf("replace partition file: %w", err)
	}
	return nil
}

// memory is what the driver keeps beside the partition file.
type memory struct {
	path string
	kept
}

// kept survives a restart.
type kept struct {
	// Epoch and Changed say which ports the last set changed, so that a repeat of the operation answers for the same ports.
	Epoch   int64           `json:"epoch"`
	Changed []protocol.GUID `json:"changed"`
	// Text is the file that we last meant to have in place. If what is in place cannot be read, the fabric may be open, and
	// this is what to go back to.
	Text string `json:"text"`
	// Ports are all HCA ports that were ever seen, with their last place.
	Ports map[protocol.GUID]protocol.TopologyPort `json:"ports"`
}

func openMemory(dir string) (*memory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	m := &memory{path: filepath.Join(dir, "opensm-driver.json")}
	if _, err := durable.ReadJSON(m.path, &m.kept); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if m.Ports == nil {
		m.Ports = map[protocol.GUID]protocol.TopologyPort{}
	}
	return m, nil
}

func (m *memory) save() error {
	if err := durable.WriteJSON(m.path, m.kept, 0o600); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

// noteSeen remembers ports and reports whether that was news.
func (m *memory) noteSeen(ports []protocol.TopologyPort) bool {
	news := false
	for _, port := range ports {
		if m.Ports[port.GUID] != port {
			m.Ports[port.GUID] = port
			news = true
		}
	}
	return news
}

// file returns what we last meant to have in place, if we ever did.
func (m *memory) file() (file, bool) {
	if m.Text == "" {
		return file{}, false
	}
	f, err := parse([]byte(m.Text))
	return f, err == nil
}

// changes returns the ports that the set changes against the file; for a repeat of the epoch in place, those that it changed.
func (m *memory) changes(before fabric.State, desired fabric.Desired, epoch int64) []protocol.GUID {
	changed := fabric.Changes(before.Desired, desired)
	if epoch == before.Epoch && epoch == m.Epoch {
		changed = slices.Compact(slices.Sorted(slices.Values(slices.Concat(changed, m.Changed))))
	}
	return changed
}
