package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/leasehold/leasehold/agent/internal/node"
)

const (
	statusUsage    = 2
	statusNotFound = 127
	// maxFile and maxFiles bound what a tenant may leave on a simulated node: it lies on the disk of whoever runs the simulator.
	maxFile  = 64 << 10
	maxFiles = 64
)

// shell is what a tenant of a virtual machine talks to. It touches nothing but the lease's own scratch directory, and that through
// os.Root, which no name leads out of. It implements access.Shell.
type shell struct {
	box *box

	settled atomic.Pointer[node.Node] // nil until the node's memory is open
}

// settle gives the shell the node that knows the tenancies.
func (s *shell) settle(n *node.Node) { s.settled.Store(n) }

func (s *shell) tenancy(place string) (node.Tenancy, bool) {
	n := s.settled.Load()
	if n == nil {
		return node.Tenancy{}, false
	}
	return n.Tenancy(place)
}

// call is one command under way.
type call struct {
	*shell
	ctx   context.Context //nolint:containedctx // a call lasts as long as its command
	lease node.Tenancy
	args  []string
	out   io.Writer
	errs  io.Writer
}

func builtins() map[string]func(*call) int {
	return map[string]func(*call) int{
		"help": (*call).help, "hostname": (*call).hostname, "whoami": (*call).whoami, "uptime": (*call).uptime, "true": ok, ":": ok,
		"uname": (*call).uname, "pwd": (*call).pwd,
		"nvidia-smi": (*call).nvidiaSMI, "rocm-smi": (*call).rocmSMI, "ibstat": (*call).ibstat, "pkeys": (*call).pkeys,
		"ls": (*call).ls, "cat": (*call).cat, "echo": (*call).echo, "touch": (*call).touch, "rm": (*call).rm,
	}
}

func ok(*call) int { return 0 }

// Prompt implements access.Shell.
func (s *shell) Prompt(place string) string {
	t, _ := s.tenancy(place)
	return "lease@" + t.Hostname + ":~$ "
}

// Welcome implements access.Shell.
func (s *shell) Welcome(place string) string {
	t, _ := s.tenancy(place)
	return fmt.Sprintf("Leasehold simulated node %s, lease %s.\nThe hardware is simulated and this shell is a small built-in one: try help.\n", t.Hostname, t.LeaseID)
}

// Run implements access.Shell.
func (s *shell) Run(ctx context.Context, place, line string, out, errs io.Writer) (int, bool) {
	commands, err := parseLine(line)
	if err != nil {
		fmt.Fprintf(errs, "%v: this shell knows words, quotes, ;, &&, > and >>\n", err)
		return statusUsage, false
	}
	t, found := s.tenancy(place)
	if !found {
		fmt.Fprintln(errs, "this place is no longer there")
		return 1, true
	}
	status := 0
	for _, c := range commands {
		if c.onlyIfOK && status != 0 {
			continue
		}
		if c.words[0] == "exit" || c.words[0] == "logout" {
			return status, true
		}
		k := &call{shell: s, ctx: ctx, lease: t, args: c.words[1:], out: out, errs: errs}
		status = k.run(c)
	}
	return status, false
}

func (k *call) run(c command) int {
	builtin, known := builtins()[c.words[0]]
	if !known {
		fmt.Fprintf(k.errs, "%s: command not found\n", c.words[0])
		return statusNotFound
	}
	if c.to == "" {
		return builtin(k)
	}
	var written bytes.Buffer
	k.out = &written
	status := builtin(k)
	if err := k.write(c.to, written.Bytes(), c.appends); err != nil {
		return k.fail(c.to, err)
	}
	return status
}

func (k *call) fail(what string, err error) int {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	fmt.Fprintf(k.errs, "%s: %v\n", what, err)
	return 1
}

func (k *call) help() int {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(builtins())), func(n string) bool { return n == ":" })
	fmt.Fprintf(k.out, "%s exit\n", strings.Join(names, " "))
	return 0
}

func (k *call) hostname() int {
	fmt.Fprintln(k.out, k.lease.Hostname)
	return 0
}

func (k *call) whoami() int {
	fmt.Fprintln(k.out, "lease")
	return 0
}

func (k *call) pwd() int {
	fmt.Fprintln(k.out, "/home/lease")
	return 0
}

func (k *call) uname() int {
	if slices.Contains(k.args, "-r") {
		fmt.Fprintln(k.out, k.box.inventory.Kernel)
	} else {
		fmt.Fprintln(k.out, "Linux")
	}
	return 0
}

func (k *call) uptime() int {
	up := k.box.now().Sub(k.box.bootedAt)
	fmt.Fprintf(k.out, " %s up %d:%02d,  1 user\n", k.box.now().Format("15:04:05"), int(up.Hours()), int(up.Minutes())%60)
	return 0
}

func (k *call) echo() int {
	fmt.Fprintln(k.out, strings.Join(k.args, " "))
	return 0
}

// files opens the lease's scratch directory.
func (k *call) files() (*os.Root, error) { return os.OpenRoot(k.box.scratch(k.lease)) }

// fileName accepts plain names only: there are no directories.
func fileName(name string) error {
	if name == "" || len(name) > 100 || strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." {
		return errors.New("only plain file names in the home directory")
	}
	return nil
}

func (k *call) ls() int {
	if len(k.args) > 0 && !strings.HasPrefix(k.args[0], "-") && k.args[0] != "." && k.args[0] != "/home/lease" {
		return k.fail("ls: "+k.args[0], errors.New("there is only the home directory"))
	}
	entries, err := os.ReadDir(k.box.scratch(k.lease))
	if err != nil {
		return k.fail("ls", err)
	}
	for _, e := range entries {
		fmt.Fprintln(k.out, e.Name())
	}
	return 0
}

func (k *call) touch() int {
	return k.each("touch", func(name string) error { return k.write(name, nil, true) })
}

func (k *call) rm() int {
	return k.each("rm", func(name string) error {
		root, err := k.files()
		if err != nil {
			return err
		}
		defer root.Close() //nolint:errcheck // nothing was written through it
		return errors.Join(fileName(name), root.Remove(name))
	})
}

func (k *call) cat() int {
	return k.each("cat", func(name string) error {
		if text, isSysfs := k.sysfs(name); isSysfs {
			_, err := io.WriteString(k.out, text)
			return err
		}
		if err := fileName(name); err != nil {
			return err
		}
		root, err := k.files()
		if err != nil {
			return err
		}
		defer root.Close() //nolint:errcheck // nothing was written through it
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // nothing was written to it
		_, err = io.Copy(k.out, io.LimitReader(f, maxFile))
		return err
	})
}

func (k *call) each(what string, do func(name string) error) int {
	if len(k.args) == 0 {
		fmt.Fprintf(k.errs, "%s: missing file name\n", what)
		return statusUsage
	}
	status := 0
	for _, name := range k.args {
		if err := do(name); err != nil {
			status = k.fail(what+": "+name, err)
		}
	}
	return status
}

// write puts data into a file of the scratch directory, within its bounds.
func (k *call) write(name string, data []byte, appends bool) error {
	if err := fileName(name); err != nil {
		return err
	}
	root, err := k.files()
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // the file below tells of errors
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if appends {
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	if entries, err := os.ReadDir(k.box.scratch(k.lease)); err != nil || len(entries) >= maxFiles {
		if _, err := root.Stat(name); err != nil {
			return errors.New("no space left on device")
		}
	}
	f, err := root.OpenFile(name, flags, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size()+int64(len(data)) > maxFile {
		err = errors.New("no space left on device")
	}
	if err == nil {
		_, err = f.Write(data)
	}
	return errors.Join(err, f.Close())
}
