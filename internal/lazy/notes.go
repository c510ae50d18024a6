// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// The file beside a blob's: a header, and a byte for each block, 1 if it is here. The header has the boot in which it
// was written, because what the kernel had not written to the disk is lost with a boot, and the blob's size.
const (
	bootLength   = 36
	headerLength = bootLength + 8
)

// wholeBoot stands in place of a boot: the blob is complete, has its digest, and is on the disk.
var wholeBoot = strings.Repeat("*", bootLength)

// thisBoot returns the id of this boot.
func thisBoot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if len(id) != bootLength {
		return "", fmt.Errorf("id of this boot: %q", id)
	}
	return id, nil
}

// begin writes the notes of a blob of which nothing is here.
func begin(f *os.File, size int64) error {
	boot, err := thisBoot()
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(binary.BigEndian.AppendUint64([]byte(boot), uint64(size)),
		make([]byte, count(size))...), 0)
	return err
}

// recall reads notes. It returns false if they say nothing about this boot.
func recall(f *os.File) (size int64, got blocks, whole, ok bool) {
	text := new(bytes.Buffer)
	if _, err := text.ReadFrom(f); err != nil || text.Len() < headerLength {
		return 0, nil, false, false
	}
	boot, err := thisBoot()
	if err != nil {
		return 0, nil, false, false
	}
	header := text.Next(headerLength)
	whole = string(header[:bootLength]) == wholeBoot
	size = int64(binary.BigEndian.Uint64(header[bootLength:]))
	if !whole && string(header[:bootLength]) != boot || size <= 0 || text.Len() != count(size) {
		return 0, nil, false, false
	}
	got = make(blocks, text.Len())
	for i, b := range text.Bytes() {
		if b == 1 {
			got[i] = here
		}
	}
	return size, got, whole, true
}

// note notes that a block is here.
func note(f *os.File, block int) error {
	_, err := f.WriteAt([]byte{1}, headerLength+int64(block))
	return err
}

// complete notes that the blob is complete and on the disk.
func complete(f *os.File) error {
	if _, err := f.WriteAt([]byte(wholeBoot), 0); err != nil {
		return err
	}
	return f.Sync()
}

// spoil makes recall fail.
func spoil(f *os.File) error { return f.Truncate(0) }
