package metal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/imaging"
	"github.com/leasehold/leasehold/agent/internal/metal"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

const mib = 1 << 20

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

// machine is a tree with disks in it, by name and size.
func machine(t *testing.T, disks map[string]int64) *metal.Runtime {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"sys/block", "dev"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for name, size := range disks {
		dir := filepath.Join(root, "sys/block", name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "device"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "size"), []byte(strconv.FormatInt(size/512, 10)+"\n"), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(root, "dev", name), nil, 0o600))
		require.NoError(t, os.Truncate(filepath.Join(root, "dev", name), size))
	}
	return &metal.Runtime{Root: root, WorkDir: root, Images: imaging.Writer{Client: http.DefaultClient}, Now: noon}
}

// image is a disk of 1 MiB with a partition table that is empty.
func image(t *testing.T) ([]byte, *protocol.Image) {
	t.Helper()
	data := bytes.Repeat([]byte("image "), mib/6+1)[:mib]
	clear(data[446:510])
	data[510], data[511] = 0x55, 0xaa
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(data)
	return data, &protocol.Image{URL: server.URL, Format: "raw", SHA256: hex.EncodeToString(sum[:]), SizeBytes: int64(len(data))}
}

func code(err error) string {
	var refusal *operation.Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func TestAnImageGoesToTheSmallestDiskAndItsSeedBehindIt(t *testing.T) {
	t.Parallel()
	r := machine(t, map[string]int64{"nvme1n1": 64 * mib, "nvme0n1": 16 * mib})
	data, source := image(t)
	var phases []string
	digest, err := r.Prepare(t.Context(), node.Tenancy{}, protocol.PrepareSpec{Source: source}, func(_ int, phase string) { phases = append(phases, phase) })
	require.NoError(t, err)
	require.Equal(t, "sha256:"+source.SHA256, digest)
	require.Contains(t, phases, "imaging")
	written, err := os.ReadFile(filepath.Join(r.Root, "dev/nvme0n1"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, written[:mib]))
	door := metal.Access{Runtime: r}
	seed := &protocol.Seed{InstanceID: "lease-1", Hostname: "n1", PhoneHome: "http://127.0.0.1/"}
	evidence, err := door.Grant(t.Context(), access.Grant{Place: "p", User: "lease", Keys: []string{"ssh-ed25519 AAAA me"}, Seed: seed})
	require.NoError(t, err)
	require.Equal(t, "lease", evidence.User)
	written, err = os.ReadFile(filepath.Join(r.Root, "dev/nvme0n1"))
	require.NoError(t, err)
	require.Contains(t, string(written), "ssh-ed25519 AAAA me")
	require.False(t, door.Granted("p"), "nobody can log in while the service OS runs")
}

func TestAPreparationThatCannotBeHasItsCode(t *testing.T) {
	t.Parallel()
	_, source := image(t)
	wrong, huge := *source, *source
	wrong.SHA256 = strings.Repeat("0", 64)
	huge.SizeBytes = 1 << 40
	for want, is := range map[string]struct {
		disks  map[string]int64
		source *protocol.Image
	}{
		metal.CodeNoImage:       {map[string]int64{"nvme0n1": 16 * mib}, nil},
		metal.CodeNoDisk:        {nil, source},
		metal.CodeImageChecksum: {map[string]int64{"nvme0n1": 16 * mib}, &wrong},
		metal.CodeImageTooLarge: {map[string]int64{"nvme0n1": 16 * mib}, &huge},
		metal.CodeImageFormat:   {map[string]int64{"nvme0n1": 16 * mib}, &protocol.Image{URL: source.URL, Format: "vmdk", SHA256: source.SHA256, SizeBytes: 1}},
	} {
		_, err := machine(t, is.disks).Prepare(t.Context(), node.Tenancy{}, protocol.PrepareSpec{Source: is.source}, func(int, string) {})
		require.Equal(t, want, code(err), "%v", err)
	}
}

func TestADiskThatCannotEraseItselfIsUnsupported(t *testing.T) {
	t.Parallel()
	rows, err := machine(t, map[string]int64{"sda": 16 * mib}).Wipe(t.Context(), node.Tenancy{}, func(int, string) {})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, protocol.WipeUnsupported, rows[0].Status)
}

func TestARevocationIsShownByTrying(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	door := metal.Access{Runtime: machine(t, nil), SSHAddress: listener.Addr().String()}
	evidence, err := door.Revoke(t.Context(), "p")
	require.NoError(t, err)
	require.False(t, evidence.LoginRefused, "somebody listens")
	require.NoError(t, listener.Close())
	evidence, err = door.Revoke(t.Context(), "p")
	require.NoError(t, err)
	require.True(t, evidence.LoginRefused)
}
