package imaging_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/imaging"
)

const mib = 1 << 20

// disk is a drive that holds old data everywhere.
func disk(t *testing.T, size int64) (*imaging.Device, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("old "), int(size/4)), 0o600))
	d, err := imaging.OpenDevice(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d, path
}

// content is an image of noise, with a hole.
func content(t *testing.T, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	_, err := rand.Read(data)
	require.NoError(t, err)
	clear(data[size/3 : 2*size/3])
	return data
}

func served(t *testing.T, format imaging.Format, data []byte) imaging.Source {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(data)
	return imaging.Source{URL: server.URL, Format: format, SHA256: hex.EncodeToString(sum[:]), SizeBytes: int64(len(data))}
}

func write(t *testing.T, s imaging.Source, d imaging.Disk) (string, error) {
	t.Helper()
	w := imaging.Writer{Client: http.DefaultClient, Stall: 2 * time.Second}
	last := 0.0
	return w.Write(t.Context(), s, d, func(done float64) {
		if done < last || done > 1 {
			t.Errorf("progress went from %v to %v", last, done)
		}
		last = done
	})
}

func read(t *testing.T, path string, n int) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data[:n]
}

func TestARawImageLiesOnTheDiskAsItIs(t *testing.T) {
	t.Parallel()
	for _, size := range []int{512, mib, mib + 512, 5*mib + 1536} {
		d, path := disk(t, 8*mib)
		data := content(t, size)
		s := served(t, imaging.Raw, data)
		digest, err := write(t, s, d)
		require.NoError(t, err)
		require.Equal(t, "sha256:"+s.SHA256, digest)
		require.True(t, bytes.Equal(data, read(t, path, size)), "%d bytes", size)
	}
}

// converted makes a QCOW2 file of raw data with QEMU's own program.
func converted(t *testing.T, data []byte, options ...string) []byte {
	t.Helper()
	program, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip("qemu-img is not installed (apt-get install qemu-utils)")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "raw"), data, 0o600))
	args := append([]string{"convert", "-f", "raw", "-O", "qcow2"}, options...)
	out, err := exec.CommandContext(t.Context(), program, append(args, filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2"))...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	file, err := os.ReadFile(filepath.Join(dir, "qcow2"))
	require.NoError(t, err)
	return file
}

func TestAQCOW2ImageLiesOnTheDiskAsQEMUReadsIt(t *testing.T) {
	t.Parallel()
	for _, options := range [][]string{{}, {"-c"}, {"-o", "compat=0.10"}, {"-o", "cluster_size=4096"}, {"-o", "cluster_size=2M"}, {"-c", "-o", "cluster_size=4096"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			t.Parallel()
			data := content(t, 5*mib+1024)
			copy(data[:mib], bytes.Repeat([]byte("compressible "), mib/13))
			d, path := disk(t, 8*mib)
			_, err := write(t, served(t, imaging.QCOW2, converted(t, data, options...)), d)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, read(t, path, len(data))))
		})
	}
}

func TestAnImageThatIsNotTheRightOneDoesNotBoot(t *testing.T) {
	t.Parallel()
	data := content(t, 3*mib)
	for name, is := range map[string]struct {
		change func(s *imaging.Source)
		want   error
	}{
		"wrong checksum":    {func(s *imaging.Source) { s.SHA256 = strings.Repeat("0", 64) }, imaging.ErrChecksum},
		"shorter than said": {func(s *imaging.Source) { s.SizeBytes += mib }, nil},
		"longer than said":  {func(s *imaging.Source) { s.SizeBytes -= mib }, imaging.ErrChecksum},
		"larger than disk":  {func(s *imaging.Source) { s.SizeBytes = 5 * mib }, imaging.ErrTooLarge},
		"no checksum":       {func(s *imaging.Source) { s.SHA256 = "" }, imaging.ErrFormat},
		"no format":         {func(s *imaging.Source) { s.Format = "iso" }, imaging.ErrFormat},
		"not QCOW2":         {func(s *imaging.Source) { s.Format = imaging.QCOW2 }, imaging.ErrFormat},
		"not there":         {func(s *imaging.Source) { s.URL = "http://127.0.0.1:1/" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, path := disk(t, 4*mib)
			s := served(t, imaging.Raw, data)
			is.change(&s)
			_, err := write(t, s, d)
			require.Error(t, err)
			if is.want != nil {
				require.ErrorIs(t, err, is.want)
			}
			if touched := s.Format == imaging.QCOW2 || name != "no checksum" && name != "no format"; touched {
				require.Equal(t, make([]byte, 512), read(t, path, 512), "its first sector is what boots")
			}
		})
	}
}

func TestAQCOW2ImageLargerThanTheDiskIsRefused(t *testing.T) {
	t.Parallel()
	d, _ := disk(t, 4*mib)
	_, err := write(t, served(t, imaging.QCOW2, converted(t, make([]byte, 64*mib))), d)
	require.ErrorIs(t, err, imaging.ErrTooLarge)
}

func TestAServerThatChangesTheImageAfterItsChecksumWasTakenGainsNothing(t *testing.T) {
	t.Parallel()
	good := converted(t, content(t, 3*mib))
	evil := bytes.Clone(good)
	evil[len(evil)-100] ^= 1
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := good
		if requests.Add(1) > 1 {
			data = evil
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(good)
	d, _ := disk(t, 4*mib)
	_, err := write(t, imaging.Source{URL: server.URL, Format: imaging.QCOW2, SHA256: hex.EncodeToString(sum[:]), SizeBytes: int64(len(good))}, d)
	require.ErrorIs(t, err, imaging.ErrChecksum)
}

func TestAServerThatStallsIsGivenUp(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 100))
		_ = http.NewResponseController(w).Flush()
		<-release
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	d, _ := disk(t, 4*mib)
	w := imaging.Writer{Client: http.DefaultClient, Stall: 50 * time.Millisecond}
	_, err := w.Write(t.Context(), imaging.Source{URL: server.URL, Format: imaging.Raw, SHA256: strings.Repeat("0", 64), SizeBytes: mib}, d, func(float64) {})
	require.Error(t, err)
}

func seed() imaging.Seed {
	return imaging.Seed{
		InstanceID: "lease-1", Hostname: "node-1", User: "lease", Keys: []string{"ssh-ed25519 AAAA a@b"}, UserData: "#!/bin/sh\necho hello\n",
		PhoneHome: "http://127.0.0.1/phone",
	}
}

// partitioned makes a disk with a partition table on its first part, as an image smaller than the disk leaves it.
func partitioned(t *testing.T, script string) (*imaging.Device, string) {
	t.Helper()
	if _, err := exec.LookPath("sfdisk"); err != nil {
		t.Skip("sfdisk is not installed (apt-get install fdisk)")
	}
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, make([]byte, 16*mib), 0o600))
	command := exec.CommandContext(t.Context(), "sfdisk", "--no-tell-kernel", image)
	command.Stdin = strings.NewReader(script)
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	data, err := os.ReadFile(image)
	require.NoError(t, err)
	copy(data, "boot code that must stay")
	d, path := disk(t, 64*mib)
	_, err = write(t, served(t, imaging.Raw, data), d)
	require.NoError(t, err)
	return d, path
}

// table is what sfdisk makes of a disk.
type table struct {
	Label      string `json:"label"`
	Partitions []struct {
		Start int64  `json:"start"`
		Size  int64  `json:"size"`
		Name  string `json:"name"`
		Attrs string `json:"attrs"`
	} `json:"partitions"`
}

func tableOf(t *testing.T, path string) table {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sfdisk", "--json", path)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	require.NoError(t, command.Run(), "%s", errs.String())
	require.NotContains(t, errs.String(), "corrupt")
	var answer struct {
		Table table `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &answer))
	return answer.Table
}

func TestASeedIsAPartitionAtTheDisksEnd(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"gpt": "label: gpt\nstart=2048, size=2048, attrs=LegacyBIOSBootable, name=boot\nstart=4096, size=8192, name=root\n",
		"dos": "label: dos\nstart=2048, size=8192, type=83, bootable\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, path := partitioned(t, script)
			before := len(tableOf(t, path).Partitions)
			for range 2 { // planted anew it replaces the first
				require.NoError(t, imaging.Plant(d, seed(), t.TempDir()))
			}
			got := tableOf(t, path)
			require.Equal(t, name, got.Label)
			require.Len(t, got.Partitions, before+1)
			last := got.Partitions[before]
			require.Greater(t, last.Start, int64(58*mib/512))
			require.Equal(t, "boot code that must stay", string(read(t, path, 24)))
			if name == "gpt" {
				require.Equal(t, "LegacyBIOSBootable", got.Partitions[0].Attrs)
			}
			iso := filepath.Join(t.TempDir(), "iso")
			all := read(t, path, 64*mib)
			require.NoError(t, os.WriteFile(iso, all[last.Start*512:(last.Start+last.Size)*512], 0o600))
			out, err := exec.CommandContext(t.Context(), "blkid", "-p", "-o", "export", iso).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "LABEL=cidata")
			require.Contains(t, string(all), "echo hello")
			require.Contains(t, string(all), "ssh-ed25519 AAAA a@b")
		})
	}
}

func TestASeedThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	empty, _ := disk(t, 16*mib)
	require.NoError(t, empty.Zero(0, mib))
	require.ErrorIs(t, imaging.Plant(empty, seed(), t.TempDir()), imaging.ErrFormat, "no partition table")
	full, _ := partitioned(t, "label: gpt\nstart=2048, size=8192\n")
	long := seed()
	long.UserData = strings.Repeat("x", 64<<10+1)
	require.ErrorIs(t, imaging.Plant(full, long, t.TempDir()), imaging.ErrSeed)
	nobody := seed()
	nobody.User = ""
	require.ErrorIs(t, imaging.Plant(full, nobody, t.TempDir()), imaging.ErrSeed)
}

func TestAnImageThatFillsTheDiskLeavesNoRoomForASeed(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"gpt", "dos"} {
		image := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(image, make([]byte, 16*mib), 0o600))
		command := exec.CommandContext(t.Context(), "sfdisk", "--no-tell-kernel", image)
		command.Stdin = strings.NewReader(fmt.Sprintf("label: %s\nstart=2048\n", label))
		out, err := command.CombinedOutput()
		if err != nil {
			t.Skipf("sfdisk: %v %s", err, out)
		}
		d, err := imaging.OpenDevice(image)
		require.NoError(t, err)
		require.ErrorIs(t, imaging.Plant(d, seed(), t.TempDir()), imaging.ErrTooLarge, label)
		require.NoError(t, d.Close())
	}
}
