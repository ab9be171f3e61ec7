package ibsim_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
)

// helperDir, if set, makes this test binary a process that runs a subnet there until it is killed.
const helperDir = "LEASEHOLD_TEST_SUBNET_DIR"

func TestTheChildrenDieWithTheirParent(t *testing.T) {
	t.Parallel()
	ibsimtest.Tools(t)
	helper := exec.Command(os.Args[0], "-test.run=TestSubnetHelper", "-test.v") //nolint:noctx // killed below
	helper.Env = append(os.Environ(), helperDir+"="+t.TempDir())
	out, err := helper.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, helper.Start())
	var pids []int
	lines := bufio.NewScanner(out)
	for len(pids) == 0 && lines.Scan() {
		pids = parsePIDs(lines.Text())
	}
	require.NoError(t, helper.Process.Signal(syscall.SIGKILL))
	_ = helper.Wait() // killed
	require.Len(t, pids, 2)
	require.Eventually(t, func() bool { return !alive(pids[0]) && !alive(pids[1]) }, 10*time.Second, time.Millisecond)
}

// TestSubnetHelper is not a claim: it is the process that TestTheChildrenDieWithTheirParent kills.
func TestSubnetHelper(t *testing.T) { //nolint:paralleltest // it runs alone, in a process of its own
	dir := os.Getenv(helperDir)
	if dir == "" {
		t.SkipNow()
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, ibsim.PartitionsFile), []byte(oneTenant), 0o600))
	subnet, err := ibsim.Start(t.Context(), ibsim.Config{Topology: ibsimtest.FatTree(4, 1), Dir: dir, Tools: ibsimtest.Tools(t)})
	require.NoError(t, err)
	require.NoError(t, subnet.StartManager(t.Context()))
	manager, err := subnet.ManagerPID(t.Context())
	require.NoError(t, err)
	fmt.Printf("pids %d %d\n", manager, subnet.SimulatorPID()) //nolint:forbidigo // read by the parent
	select {}
}

func parsePIDs(line string) []int {
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != "pids" {
		return nil
	}
	var pids []int
	for _, word := range words[1:] {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil
		}
		pids = append(pids, pid)
	}
	return pids
}

// alive reports whether a process is there and not a zombie that nobody has buried yet.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestASubnetWhoseStartIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ibsim.Start(ctx, ibsim.Config{Topology: ibsimtest.FatTree(4, 1), Dir: t.TempDir(), Tools: ibsimtest.Tools(t)})
	require.ErrorIs(t, err, context.Canceled)
}

func TestASimulatorThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	tools := ibsimtest.Tools(t)
	tools.Simulator = "/bin/false"
	_, err := ibsim.Start(t.Context(), ibsim.Config{Topology: ibsimtest.FatTree(4, 1), Dir: t.TempDir(), Tools: tools})
	require.ErrorContains(t, err, "/bin/false")
	require.ErrorContains(t, err, "the process ended")
}

func TestOpenSMIsNotStartedWithoutItsFile(t *testing.T) {
	t.Parallel()
	subnet, err := ibsim.Start(t.Context(), ibsim.Config{Topology: ibsimtest.FatTree(4, 1), Dir: t.TempDir(), Tools: ibsimtest.Tools(t)})
	require.NoError(t, err)
	defer func() { require.NoError(t, subnet.Close()) }()
	require.ErrorIs(t, subnet.StartManager(t.Context()), os.ErrNotExist)
	_, err = subnet.ManagerPID(t.Context())
	require.ErrorIs(t, err, ibsim.ErrManagerDown)
	require.ErrorIs(t, subnet.Hangup(t.Context()), ibsim.ErrManagerDown)
}

func TestWhatIsNotInstalledIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	ibsimtest.Tools(t) // found at its usual place also when PATH lacks it
}

func TestAClientIsRefusedWhenAllPlacesAreTaken(t *testing.T) {
	t.Parallel()
	ctx, subnet := start(t, ibsimtest.FatTree(4, 1))
	var err error
	for range 10 {
		transport, dialErr := subnet.Dial(ctx, "n0001-h0")
		if dialErr != nil {
			err = dialErr
			break
		}
		defer func() { require.NoError(t, transport.Close()) }()
	}
	require.ErrorContains(t, err, "no place left")
	_, err = subnet.Client().Walk(ctx)
	require.NoError(t, err, "those that have a place go on")
}
