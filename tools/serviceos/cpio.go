package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// file is one entry of the archive.
type file struct {
	name string
	mode uint32 // type and permissions, as in stat(2)
	data []byte // content, or a symbolic link's target
	dev  [2]uint32
}

// Types of file.
const (
	typeDir     = 0o040000
	typeRegular = 0o100000
	typeLink    = 0o120000
	typeChar    = 0o020000
)

// writeCPIO writes the files in the "newc" format that Linux unpacks, sorted by name, everything root's and of the time 0.
func writeCPIO(w io.Writer, files []file) error {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	for i, f := range append(sorted, file{name: "TRAILER!!!"}) {
		if i > 0 && i < len(sorted) && sorted[i-1].name == f.name {
			return fmt.Errorf("%s is there twice", f.name)
		}
		if err := writeEntry(w, i+1, f); err != nil {
			return err
		}
	}
	return nil
}

func writeEntry(w io.Writer, inode int, f file) error {
	links := 1
	if f.mode&typeDir != 0 && f.mode&typeRegular == 0 {
		links = 2
	}
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, f.mode, 0, 0, links, 0, len(f.data), 0, 0, f.dev[0], f.dev[1], len(f.name)+1, 0, f.name)
	for _, part := range []string{head, padding(len(head)), string(f.data), padding(len(f.data))} {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	return nil
}

// padding fills up to the next multiple of four.
func padding(n int) string { return strings.Repeat("\x00", -n&3) }
