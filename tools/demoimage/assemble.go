package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/diskfs/go-diskfs/partition/gpt"
)

const (
	sectorBytes = 512
	// Where the two partitions begin, in sectors: GRUB's own, and the files.
	coreAt  = 2048
	filesAt = 4096
	// tailSectors leaves room for the partition table's second copy.
	tailSectors = 2048

	rootPartition = "6D1F6F00-0000-4000-8000-0000000000F2"
	grubDir       = "/usr/lib/grub/i386-pc"
)

// makeGRUB makes GRUB's core with its one command line in it.
func makeGRUB(ctx context.Context, work, core, kernel string) error {
	config := filepath.Join(work, "grub.cfg")
	text := fmt.Sprintf("set root=(hd0,gpt2)\nlinux /boot/vmlinuz-%s root=PARTUUID=%s rw console=ttyS0 quiet net.ifnames=0\nboot\n", kernel, rootPartition)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write GRUB's commands: %w", err)
	}
	return run(ctx, "grub-mkimage", "-O", "i386-pc", "-o", core, "-p", "(hd0,gpt2)/boot/grub", "-c", config, "biosdisk", "part_gpt", "ext2", "linux", "normal")
}

// Where GRUB's first sector names the sector of its core, and where the core's first names the sector of the rest.
const (
	bootNamesCore = 0x5c
	coreNamesRest = 0x1f4
	bootCodeBytes = 440
)

// assemble lays the image out: boot sector, partition table, GRUB's core, files.
func assemble(path, files, core string) (err error) { //nolint:nonamedreturns // closing may fail too
	info, err := os.Stat(files)
	if err != nil {
		return err
	}
	sectors := filesAt + info.Size()/sectorBytes + tailSectors
	image, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	if err := image.Truncate(sectors * sectorBytes); err != nil {
		return err
	}
	table := &gpt.Table{LogicalSectorSize: sectorBytes, PhysicalSectorSize: sectorBytes, ProtectiveMBR: true, Partitions: []*gpt.Partition{
		{Index: 1, Start: coreAt, End: filesAt - 1, Type: gpt.BIOSBoot, Name: "grub"},
		{Index: 2, Start: filesAt, End: uint64(filesAt + info.Size()/sectorBytes - 1), Type: gpt.LinuxFilesystem, Name: "root", GUID: rootPartition}, //nolint:gosec // a size is positive
	}}
	if err := table.Write(image, sectors*sectorBytes); err != nil {
		return err
	}
	if err := putGRUB(image, core); err != nil {
		return err
	}
	return pour(image, filesAt*sectorBytes, files)
}

// putGRUB does what grub-bios-setup does on a disk: it writes where each part finds the next.
func putGRUB(image io.WriterAt, core string) error {
	boot, err := os.ReadFile(filepath.Join(grubDir, "boot.img"))
	if err != nil {
		return err
	}
	rest, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	if len(boot) < bootCodeBytes || len(rest) < sectorBytes || len(rest) > (filesAt-coreAt)*sectorBytes {
		return errors.New("GRUB's parts are not of the size that they should be")
	}
	binary.LittleEndian.PutUint64(boot[bootNamesCore:], coreAt)
	binary.LittleEndian.PutUint64(rest[coreNamesRest:], coreAt+1)
	if _, err := image.WriteAt(boot[:bootCodeBytes], 0); err != nil {
		return err
	}
	_, err = image.WriteAt(rest, coreAt*sectorBytes)
	return err
}

// pour copies a file into the image and leaves holes where it has zeros.
func pour(image io.WriterAt, at int64, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	chunk := make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(f, chunk)
		if n > 0 && len(bytes.TrimLeft(chunk[:n], "\x00")) > 0 {
			if _, err := image.WriteAt(chunk[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
