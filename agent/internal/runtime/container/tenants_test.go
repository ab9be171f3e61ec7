//go:build linux

package container_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/protocol"
)

func gpuA() protocol.Slots { return protocol.Slots{From: 0, To: 8} }
func gpuB() protocol.Slots { return protocol.Slots{From: 8, To: 16} }

func twoTenants(t *testing.T) (*tenant, *tenant) {
	t.Helper()
	h := newHouse(t)
	return h.moveIn(gpuA(), specOf("lease_a", cardA)), h.moveIn(gpuB(), specOf("lease_b", cardB))
}

func TestOnlyTheRightKeyOpensAPlaceAndItIsThatPlace(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)
	require.Equal(t, "lease-a", a.run("hostname"))
	require.Equal(t, "lease-b", b.run("hostname"))
	require.NotEqual(t, a.at.User, b.at.User, "a log-in name says which place is meant")
	_, err := a.dial(b.key)
	require.ErrorContains(t, err, "unable to authenticate")
	_, err = b.dial(a.key)
	require.ErrorContains(t, err, "unable to authenticate")
	_, err = a.dial(newKey(t))
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestSessionsAreThoseOfAMachine(t *testing.T) {
	t.Parallel()
	a := newHouse(t).moveIn(gpuA(), specOf("lease_a", cardA))
	_, err := a.try("exit 7")
	require.ErrorContains(t, err, "status 7")
	_, err = a.try("no-such-program")
	require.ErrorContains(t, err, "status 127")
	session, err := a.ssh.NewSession()
	require.NoError(t, err)
	var out, errs strings.Builder
	session.Stdout, session.Stderr = &out, &errs
	require.NoError(t, session.Run("echo one; echo two >&2"))
	require.Equal(t, "one\n", out.String())
	require.Equal(t, "two\n", errs.String())

	session, err = a.ssh.NewSession()
	require.NoError(t, err)
	session.Stdin = strings.NewReader("typed")
	echoed, err := session.Output("cat")
	require.NoError(t, err)
	require.Equal(t, "typed", string(echoed))

	session, err = a.ssh.NewSession()
	require.NoError(t, err)
	require.NoError(t, session.RequestPty("xterm", 24, 80, nil))
	stdin, err := session.StdinPipe()
	require.NoError(t, err)
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Shell())
	_, err = io.WriteString(stdin, "tty; echo $TERM; stty size; exit 5\r")
	require.NoError(t, err)
	said, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Contains(t, string(said), "/dev/pts/")
	require.Contains(t, string(said), "xterm\r\n24 80\r\n")
	require.ErrorContains(t, session.Wait(), "status 5")
}

func TestATenantHasItsOwnDevicesAndNoOther(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)
	require.Equal(t, cardA, a.run("echo $NVIDIA_VISIBLE_DEVICES"))
	a.run("exec 3<" + nodeA)
	_, err := a.try("ls " + nodeB)
	require.Error(t, err)
	b.run("ls " + nodeB)
	_, err = b.try("ls " + nodeA)
	require.Error(t, err)
	_, err = b.try(fmt.Sprintf("mknod /root/gpu c 10 %d && exec 3</root/gpu", minorA))
	require.Error(t, err, "a tenant made itself a neighbour's device")
	devices := strings.Fields(b.run("find /dev -type c -o -type b"))
	require.ElementsMatch(t, []string{
		nodeB, "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/ptmx",
	}, devices)
}

func TestTenantsDoNotSeeOrSignalEachOther(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)
	b.begin("sleep 424242")
	b.run("echo secret >/scratch/mine; echo secret >/root/mine; echo secret >/dev/shm/mine; echo secret >/tmp/mine")
	pid := b.hostProcess("424242")
	require.NotContains(t, a.run("ps"), "424242")
	_, err := a.try(fmt.Sprintf("kill -9 %d; kill -9 -1; ls -d /proc/%d", pid, pid))
	require.Error(t, err)
	for _, file := range []string{"/scratch/mine", "/root/mine", "/dev/shm/mine", "/tmp/mine"} {
		_, err := a.try("cat " + file)
		require.Error(t, err, file)
	}
	require.Contains(t, b.run("ps"), "424242", "a neighbour ended it")
	require.NotContains(t, a.run("ipcs -a; cat /proc/mounts /proc/self/mountinfo; cat /proc/self/cgroup"), fmt.Sprintf("%s-008", a.cfg.Name))
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		space := "readlink /proc/self/ns/" + kind
		require.NotEqual(t, a.run(space), b.run(space))
	}
}

// hostProcess finds the host's number of a process that runs one of the tenant's commands.
func (m *tenant) hostProcess(argument string) int {
	m.t.Helper()
	first := m.driver.Users(m.slots.From)
	found := 0
	require.Eventually(m.t, func() bool {
		entries, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(m.t, err)
		for _, dir := range entries {
			line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			var stat unix.Stat_t
			if err == nil && strings.HasPrefix(string(line), "sleep\x00") && strings.Contains(string(line), argument) && unix.Stat(dir, &stat) == nil && stat.Uid == first {
				found, err = strconv.Atoi(filepath.Base(dir))
				require.NoError(m.t, err)
			}
		}
		return found != 0
	}, 10*time.Second, 10*time.Millisecond)
	return found
}

func TestATenantsRootIsNobodyOutside(t *testing.T) {
	t.Parallel()
	a := newHouse(t).moveIn(gpuA(), specOf("lease_a", cardA))
	status := a.run("cat /proc/self/status")
	require.Contains(t, status, "NoNewPrivs:\t1")
	require.Contains(t, status, "Seccomp:\t2")
	require.Regexp(t, `(?m)^CapEff:\t00000000800405fb$`, status)
	require.Contains(t, a.run("cat /proc/self/uid_map"), strconv.Itoa(int(a.driver.Users(0))))
	for what, command := range map[string]string{
		"mount":                  "mount -t tmpfs x /mnt || mount -t tmpfs x /tmp",
		"another user namespace": "unshare -U true",
		"a kernel setting":       "echo 1 >/proc/sys/kernel/sysrq",
		"a core handler":         "echo '|/bin/sh' >/proc/sys/kernel/core_pattern",
		"sysrq":                  "echo c >/proc/sysrq-trigger",
		"the kernel's log":       "dmesg",
		"the clock":              "date -s 2001-01-01 && [ $(date +%Y) = 2001 ]",
		"the host's name":        "hostname evil",
		"its own limits":         "for f in /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max; do [ -e $f ] && echo 99 >$f && exit; done; exit 1",
		"its network":            "ip link add evil type dummy",
		"raw packets":            "ping -c 1 127.0.0.1",
		"modules":                "insmod /bin/busybox",
		"memory":                 "cat /dev/mem",
		"priority":               "nice -n -10 true && [ $(nice -n -10 nice) = -10 ]",
		"switching off":          "reboot -f",
	} {
		out, err := a.try(command)
		require.Error(t, err, "%s: %s", what, out)
	}
	require.Empty(t, a.run("cat /proc/keys /proc/timer_list; ls -A /sys/firmware; ls -A /sys/class/dmi 2>/dev/null; true"))
	a.run("su user -c 'id -u' | grep 1000") // what is within its own is its own
}

func TestATenantStarvesNobody(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)

	// Memory: what is too much ends in the place that asked for it.
	require.Contains(t, a.run("tail -c 400000000 /dev/zero >/dev/null; echo $?"), "137", "it was not ended")
	_, err := a.try("dd if=/dev/zero of=/dev/shm/fill bs=1M count=300")
	require.Error(t, err)
	a.run("rm -f /dev/shm/fill")

	// Disk: a full one is full for its tenant alone.
	out, err := a.try("dd if=/dev/zero of=/scratch/fill bs=1M count=400")
	require.Error(t, err)
	require.Contains(t, out, "No space left")
	b.run("dd if=/dev/zero of=/scratch/some bs=1M count=32")
	_, err = a.try("dd if=/dev/zero of=/root/more bs=1M count=8")
	require.Error(t, err, "the root file system is on the same disk")
	a.run("rm /scratch/fill")

	// Processes.
	out, err = a.try("i=0; while [ $i -lt 200 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done")
	require.Error(t, err)
	require.Contains(t, out, "fork")
	b.run("for i in 1 2 3 4 5 6 7 8; do sleep 0 & done; wait")
	a.moveOut() // and what the tenant did to itself is no hindrance
}

func TestProcessorTimeIsShared(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	slice := specOf("lease_m", cardB) // half of a GPU, and so less than a core where there are two
	slice.MIGProfile = "3g.40gb"
	a, b := h.moveIn(protocol.Slots{From: 12, To: 16}, slice), h.moveIn(gpuA(), specOf("lease_a", cardA))
	list := func(m *tenant) string { return m.run("grep Cpus_allowed_list /proc/self/status") }
	if len(everyCore(t)) > 1 {
		require.NotEqual(t, list(a), list(b))
	}
	limits, err := a.machine.ShareOf(a.slots)
	require.NoError(t, err)
	// Two busy loops for each processor of the machine, for a second, and what they used in how much time.
	used := a.run(fmt.Sprintf(`
		usage() { cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || sed -n 's/usage_usec \(.*\)/\1000/p' /sys/fs/cgroup/cpu.stat; }
		clock() { sed 's/ .*//; s/\.\(..\)/\10000000/' /proc/uptime; }
		i=0; while [ $i -lt %d ]; do (while :; do :; done) & p="$p $!"; i=$((i+1)); done
		u=$(usage); c=$(clock); sleep 1; echo $(($(usage)-u)) $(($(clock)-c)); kill -9 $p`, 2*len(everyCore(t))))
	var took, elapsed time.Duration
	_, err = fmt.Sscan(used, &took, &elapsed)
	require.NoError(t, err, used)
	allowed := elapsed * time.Duration(limits.QuotaMicros) / 100_000
	require.Less(t, took, allowed+allowed/4+200*time.Millisecond, "used more than its share in %v", elapsed)
	require.Positive(t, took)
}

func TestTenantsDoNotReachEachOtherOrTheHost(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)
	for _, m := range []*tenant{a, b} {
		m.begin("while :; do echo from " + m.lease + " | nc -l -p 7777; done")
	}
	for _, m := range []*tenant{a, b} {
		require.Eventually(t, func() bool {
			conn, err := m.ssh.Dial("tcp", "localhost:7777")
			if err != nil {
				return false
			}
			defer conn.Close() //nolint:errcheck // the test is over
			said, err := io.ReadAll(conn)
			return err == nil && string(said) == "from "+m.lease+"\n"
		}, 10*time.Second, 20*time.Millisecond)
	}
	require.Equal(t, "from lease_a", a.run("nc -w 2 127.0.0.1 7777"))
	_, err := a.try(fmt.Sprintf("nc -w 1 127.0.0.1 %d", a.at.Port)) // the host's SSH server
	require.Error(t, err)
	require.Equal(t, "lo", a.run("ls /sys/class/net"))
	_, err = a.ssh.Dial("tcp", "169.254.169.254:80")
	require.Error(t, err)
}

func TestEverythingIsGoneAfterTheLease(t *testing.T) {
	t.Parallel()
	a, b := twoTenants(t)
	a.begin("sleep 434343")
	a.begin("trap '' TERM HUP INT; while :; do sleep 1; done")
	pid := a.hostProcess("434343")
	marker := "MARK" + a.cfg.Name
	a.run(fmt.Sprintf("for f in /scratch/a /root/b /etc/hosts; do for i in 1 2 3 4 5 6 7 8 9 10; do echo %s; done >$f; done; sync", marker))
	disk := filepath.Join(a.cfg.Dir, "places", "000", "scratch.img")
	kept := filepath.Join(a.dir, "kept")
	require.NoError(t, os.Link(disk, kept))

	revoked, rows := a.moveOut()
	require.True(t, revoked.LoginRefused)
	require.GreaterOrEqual(t, revoked.ProcessesEnded, 2)
	kinds := map[string]protocol.DeviceWipe{}
	for _, row := range rows {
		require.Equal(t, protocol.Wiped, row.Status, row.Detail)
		require.Zero(t, row.ReadBackDirty)
		require.Positive(t, row.ReadBackSamples)
		kinds[row.Kind] = row
	}
	require.Contains(t, kinds, "scratch")
	require.Contains(t, kinds, "container")
	require.Contains(t, kinds, "gpu_memory")

	content, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Empty(t, strings.Trim(string(content), "\x00"), "something of the tenant is on the disk")
	require.NoFileExists(t, disk)
	require.NoDirExists(t, filepath.Dir(disk))
	require.ErrorIs(t, unix.Kill(pid, 0), unix.ESRCH)
	require.ErrorContains(t, a.ssh.Wait(), "")
	_, err = a.dial(a.key)
	require.ErrorContains(t, err, "unable to authenticate")
	left, err := filepath.Glob("/sys/fs/cgroup/*/leasehold/" + a.cfg.Name + "/*-000")
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, filepath.Join(a.cfg.Run, a.cfg.Name+"-000"))

	require.Equal(t, "lease-b", b.run("hostname"), "the neighbour noticed")
	_, err = a.do(protocol.Wipe, gpuA(), protocol.WipeSpec{LeaseID: "lease_a", Nonce: "n"})
	require.NoError(t, err, "a wipe may be repeated")
	next := a.moveIn(gpuA(), specOf("lease_c", cardA))
	require.Empty(t, next.run("ls /scratch"))
	require.NotContains(t, next.run("cat /etc/hosts"), marker)
}

func TestAMIGInstanceIsMadeForItsTenantAndGoesWithIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	spec := specOf("lease_m", cardB)
	spec.MIGProfile = "3g.40gb"
	m := h.moveIn(protocol.Slots{From: 12, To: 16}, spec)
	require.Equal(t, "MIG-"+cardB+"-4", m.run("echo $NVIDIA_VISIBLE_DEVICES"))
	m.run("ls /dev/mig4")
	there, err := h.gpus.Instances(t.Context(), cardB)
	require.NoError(t, err)
	require.Len(t, there, 1)
	_, rows := m.moveOut()
	require.Equal(t, "mig_layout", rows[len(rows)-1].Kind)
	there, err = h.gpus.Instances(t.Context(), cardB)
	require.NoError(t, err)
	require.Empty(t, there)
}

func TestUserDataIsRunOnceWhenItIsAScript(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	spec := specOf("lease_a", cardA)
	spec.UserData = "#!/bin/sh\necho said; echo ran >>/scratch/ran; exec sleep 474747\n"
	a := h.moveIn(gpuA(), spec)
	a.hostProcess("474747")
	require.Equal(t, "ran", a.run("cat /scratch/ran"))
	require.Equal(t, "said", a.run("cat /var/lib/leasehold/user-data.log"))
	a.grant() // of other keys, or for longer
	require.Equal(t, "ran", a.run("cat /scratch/ran"))

	spec = specOf("lease_b", cardB)
	spec.UserData = "#cloud-config\npackages: [git]\n"
	b := h.moveIn(gpuB(), spec)
	require.Equal(t, strings.TrimSpace(spec.UserData), b.run("cat /var/lib/leasehold/user-data"))
	_, err := b.try("ls /var/lib/leasehold/user-data.log")
	require.Error(t, err)
}

func TestWhatNoContainerCanBeMadeOfIsRefused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for name, c := range map[string]struct {
		spoil func(*protocol.PrepareSpec)
		code  string
	}{
		"a machine as a whole":       {func(p *protocol.PrepareSpec) { p.Mode = "bare_metal" }, node.CodeUnsupported},
		"an image that is not there": {func(p *protocol.PrepareSpec) { p.Image = "other" }, container.CodeNoImage},
		"an image's name":            {func(p *protocol.PrepareSpec) { p.Image = "../tiny" }, protocol.FaultInvalidSpec},
		"a host name":                {func(p *protocol.PrepareSpec) { p.Hostname = "a\nb" }, protocol.FaultInvalidSpec},
	} {
		spec := specOf("lease_a", cardA)
		c.spoil(&spec)
		_, err := h.do(protocol.Prepare, gpuA(), spec)
		var refusal *operation.Refusal
		require.ErrorAs(t, err, &refusal, name)
		require.Equal(t, c.code, refusal.Code, name)
	}
	h.machine.ScratchBytes = 1 << 50
	_, err := h.do(protocol.Prepare, gpuA(), specOf("lease_a", cardA))
	require.ErrorContains(t, err, "reserve", "a disk that is not to be had is not promised")
	h.machine.ScratchBytes = 256 << 20
	h.moveIn(gpuA(), specOf("lease_a", cardA))
}

func TestAPartOfAGPUWithoutAnInstanceIsNotGivenAway(t *testing.T) {
	t.Parallel()
	_, err := newHouse(t).do(protocol.Prepare, protocol.Slots{From: 0, To: 4}, specOf("lease_a", cardA))
	require.ErrorIs(t, err, container.ErrNoDevice)
}
