package imaging

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// Seed is what a tenant's system is told about itself, as cloud-init's NoCloud source reads it.
type Seed struct {
	InstanceID string
	Hostname   string
	User       string // who logs in with Keys, and may become root
	Keys       []string
	// UserData is the tenant's own, unchanged; it wins where it says something else than we do.
	UserData string
	// PhoneHome is where the system tells that it runs, with its host keys; "": nowhere.
	PhoneHome string
}

// maxUserData bounds a tenant's own part, in bytes; cloud services commonly have less.
const maxUserData = 64 << 10

// ErrSeed says that a seed cannot be made of what was given.
var ErrSeed = errors.New("the seed is not proper")

// seedBytes is the size of the partition that holds it.
const seedBytes = 4 << 20

const (
	sectorBytes    = 512
	isoSectorBytes = 2048
)

// files are the seed's, by name. Ours is vendor data, which cloud-init puts below the user's.
func (s Seed) files() (map[string][]byte, error) {
	if len(s.UserData) > maxUserData {
		return nil, fmt.Errorf("%d bytes of user data are more than %d: %w", len(s.UserData), maxUserData, ErrSeed)
	}
	if s.InstanceID == "" || s.User == "" {
		return nil, fmt.Errorf("it names no instance or no user: %w", ErrSeed)
	}
	meta, err := json.Marshal(map[string]any{"instance-id": s.InstanceID, "local-hostname": s.Hostname, "public-keys": s.Keys})
	if err != nil {
		return nil, err
	}
	config := map[string]any{
		"users": []any{
			map[string]any{
				"name": s.User, "shell": "/bin/bash", "lock_passwd": true, "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": s.Keys,
			},
		},
		"ssh_pwauth": false, "disable_root": true, "preserve_hostname": false,
	}
	if s.PhoneHome != "" {
		config["phone_home"] = map[string]any{
			"url": s.PhoneHome, "post": []string{"instance_id", "hostname", "pub_key_rsa", "pub_key_ecdsa", "pub_key_ed25519"}, "tries": 20,
		}
	}
	vendor, err := json.MarshalIndent(config, "", " ") // JSON is YAML
	if err != nil {
		return nil, err
	}
	user := s.UserData
	if user == "" {
		user = "#cloud-config\n{}\n"
	}
	return map[string][]byte{
		"meta-data": append(meta, '\n'), "vendor-data": append([]byte("#cloud-config\n"), append(vendor, '\n')...), "user-data": []byte(user),
	}, nil
}

// Plant adds a partition with the seed at the end of an imaged disk: to its GPT, which is moved to the disk's real end, or to its MBR.
func Plant(disk Disk, s Seed, workDir string) error {
	files, err := s.files()
	if err != nil {
		return err
	}
	iso, err := buildISO(files, workDir)
	if err != nil {
		return fmt.Errorf("make seed: %w", err)
	}
	first, err := addPartition(disk)
	if err != nil {
		return fmt.Errorf("add seed's partition: %w", err)
	}
	if _, err := disk.WriteAt(iso, int64(first)*sectorBytes); err != nil { //nolint:gosec // within the disk
		return fmt.Errorf("write seed: %w", err)
	}
	return disk.Sync()
}

// buildISO makes an ISO 9660 file system with the label that NoCloud looks for.
func buildISO(files map[string][]byte, workDir string) ([]byte, error) {
	path := filepath.Join(workDir, "seed.iso")
	defer os.Remove(path) //nolint:errcheck // the next one replaces it
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read back before it is closed
	fs, err := iso9660.Create(file.New(f, false), seedBytes, 0, isoSectorBytes, "")
	if err != nil {
		return nil, err
	}
	for name, data := range files {
		out, err := fs.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return nil, err
		}
		if _, err := out.Write(data); err != nil {
			return nil, err
		}
		if err := out.Close(); err != nil {
			return nil, err
		}
	}
	if err := fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: "cidata"}); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err == nil && len(data) > seedBytes {
		err = fmt.Errorf("%d bytes: %w", len(data), ErrSeed)
	}
	return data, err
}

// addPartition returns the first sector of a new partition at the disk's end.
func addPartition(disk Disk) (uint64, error) {
	sectors := uint64(disk.Size()) / sectorBytes //nolint:gosec // a size is positive
	head := make([]byte, 2*sectorBytes)
	if _, err := disk.ReadAt(head, 0); err != nil {
		return 0, err
	}
	switch {
	case bytes.Equal(head[sectorBytes:sectorBytes+8], []byte("EFI PART")):
		if err := checkGPT(head[sectorBytes:]); err != nil {
			return 0, err
		}
		return addToGPT(disk, sectors)
	case head[510] == 0x55 && head[511] == 0xaa:
		return addToMBR(disk, head[:sectorBytes], sectors)
	default:
		return 0, fmt.Errorf("the image has no partition table: %w", ErrFormat)
	}
}

// tailSectors is room for GPT's second copy, at the disk's end.
const tailSectors = 2048

// seedName is the partition's name in a GPT.
const seedName = "leasehold-seed"

func addToGPT(disk Disk, sectors uint64) (uint64, error) {
	table, err := gpt.Read(onDisk{disk}, sectorBytes, sectorBytes)
	if err != nil {
		return 0, fmt.Errorf("read GPT: %w", errors.Join(err, ErrFormat))
	}
	first := (sectors - tailSectors - seedBytes/sectorBytes) / tailSectors * tailSectors
	last := first + seedBytes/sectorBytes - 1
	kept := table.Partitions[:0]
	for _, p := range table.Partitions {
		if p.Name == seedName { // the seed is planted anew
			continue
		}
		if p.Type != gpt.Unused && p.End >= first {
			return 0, fmt.Errorf("the image leaves no room for the seed: %w", ErrTooLarge)
		}
		kept = append(kept, p)
	}
	number := 1
	for _, p := range kept {
		number = max(number, p.Index+1)
	}
	table.Partitions = append(kept, &gpt.Partition{Index: number, Start: first, End: last, Size: seedBytes, Type: gpt.LinuxFilesystem, Name: seedName})
	if err := table.Repair(uint64(disk.Size())); err != nil { //nolint:gosec // a size is positive
		return 0, fmt.Errorf("move GPT to the disk's end: %w", err)
	}
	if err := table.Write(onDisk{disk}, disk.Size()); err != nil {
		return 0, fmt.Errorf("write GPT: %w", err)
	}
	return first, nil
}

// Of an MBR: where its four entries lie, and their size.
const (
	mbrEntries    = 446
	mbrEntryBytes = 16
	mbrLinux      = 0x83
)

// addToMBR takes the entry that is free, or that of an earlier seed: the last one, at the same place.
func addToMBR(disk Disk, head []byte, sectors uint64) (uint64, error) {
	first := (sectors - seedBytes/sectorBytes) / tailSectors * tailSectors
	if first > 1<<32-1 {
		first = (1<<32 - 1 - seedBytes/sectorBytes) / tailSectors * tailSectors // an MBR counts no further
	}
	free := -1
	for n := range 4 {
		entry := head[mbrEntries+n*mbrEntryBytes:][:mbrEntryBytes]
		start, length := uint64(binary.LittleEndian.Uint32(entry[8:])), uint64(binary.LittleEndian.Uint32(entry[12:]))
		switch {
		case entry[4] == 0 || start == first:
			if free < 0 || start == first {
				free = n
			}
		case start+length > first:
			return 0, fmt.Errorf("the image leaves no room for the seed: %w", ErrTooLarge)
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("the image's partition table is full: %w", ErrFormat)
	}
	entry := head[mbrEntries+free*mbrEntryBytes:][:mbrEntryBytes]
	clear(entry)
	entry[4] = mbrLinux
	binary.LittleEndian.PutUint32(entry[8:], uint32(first)) //nolint:gosec // bounded above
	binary.LittleEndian.PutUint32(entry[12:], seedBytes/sectorBytes)
	if _, err := disk.WriteAt(head, 0); err != nil {
		return 0, err
	}
	return first, nil
}
