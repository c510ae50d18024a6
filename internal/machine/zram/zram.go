// SPDX-License-Identifier: Apache-2.0

// Package zram gives the machine swap in compressed memory: a zram device of its own, recorded in a file, so that it
// is removed even after its program was killed. Devices and swap of others are never touched.
//
// See https://docs.kernel.org/admin-guide/blockdev/zram.html, swapon(2) and mkswap(8).
package zram

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/base/monotime"
)

// MinSize is the smallest size of a device in bytes.
const MinSize = 1 << 20

const control = "/sys/class/zram-control"

// ErrNone is returned by Add if the kernel has no zram.
var ErrNone = errors.New("the kernel has no zram: load the module zram (modprobe zram)")

// record is the content of the file that records a device.
type record struct {
	// Device is the N of /dev/zramN. After a restart of the machine it may be another program's.
	Device int `json:"device"`
	// ID is the UUID of the swap area on it.
	ID [16]byte `json:"id"`
	// Boot is the kernel's ID of this boot. The device does not outlive it.
	Boot string `json:"boot"`
}

func (r record) path() string { return fmt.Sprintf("/dev/zram%d", r.Device) }

// attribute returns the path of a file of the device in sysfs.
func (r record) attribute(name string) string {
	return fmt.Sprintf("/sys/block/zram%d/%s", r.Device, name)
}

// Add makes a zram device for size bytes of memory, before compression, which the kernel uses before any other swap
// without a priority of its own. It records the device in file. If a device of that size is recorded there already,
// it stays, with its content; one of another size is removed. Add needs the capability SYS_ADMIN.
//
// A program that is killed just after the kernel has made the device, before it is recorded, leaves a device without
// a size.
func Add(file string, size int64) (err error) {
	size -= size % int64(os.Getpagesize())
	if r, err := read(file); err == nil && r.serves(size) {
		return nil
	}
	if err := Remove(file); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(control, "hot_add"))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return fmt.Errorf("zram: a new device: %w", err)
	}
	var r record
	if r.Device, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return fmt.Errorf("zram: a new device: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("zram: %s: %w", r.path(), err), r.remove(file))
		}
	}()
	if r.Boot, err = monotime.BootID(); err != nil {
		return err
	}
	header, id := swapHeader(size, os.Getpagesize())
	r.ID = id
	note, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(file, note); err != nil {
		return err
	}
	if err := os.WriteFile(r.attribute("disksize"), []byte(strconv.FormatInt(size, 10)), 0); err != nil {
		return err
	}
	if err := writeAt(r.path(), header); err != nil {
		return err
	}
	return swapon(r.path())
}

// Remove removes the device that is recorded in file, and the record. Memory that is swapped to it returns to RAM. It
// does nothing without a record.
func Remove(file string) error {
	r, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("zram: %s: %w: if no /dev/zram is left of a killed instance, remove the file", file, err)
	}
	now, err := monotime.BootID()
	if err != nil {
		return err
	}
	if now != r.Boot {
		return os.Remove(file)
	}
	return r.remove(file)
}

func read(file string) (r record, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// serves reports whether the device is the recorded one, has a size, and is in use as swap.
func (r record) serves(size int64) bool {
	now, err := monotime.BootID()
	if err != nil || now != r.Boot {
		return false
	}
	text, err := os.ReadFile(r.attribute("disksize"))
	if err != nil || strings.TrimSpace(string(text)) != strconv.FormatInt(size, 10) {
		return false
	}
	mine, err := r.isMine()
	return err == nil && mine && isSwap(r.path())
}

// remove removes the device, if it is still the recorded one, and the record.
func (r record) remove(file string) error {
	mine, err := r.isMine()
	if err != nil {
		return fmt.Errorf("zram: %s: %w", r.path(), err)
	}
	if mine {
		if err := swapoff(r.path()); err != nil {
			return fmt.Errorf("zram: %s: %w: RAM must have room for the swapped memory", r.path(), err)
		}
		for _, step := range []struct{ file, text string }{
			{r.attribute("reset"), "1"}, {filepath.Join(control, "hot_remove"), strconv.Itoa(r.Device)},
		} {
			if err := os.WriteFile(step.file, []byte(step.text), 0); err != nil {
				return fmt.Errorf("zram: remove %s: %w", r.path(), err)
			}
		}
	}
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isMine reports whether the device exists and is the recorded one: it has the recorded swap area, or no size yet.
func (r record) isMine() (bool, error) {
	text, err := os.ReadFile(r.attribute("disksize"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if strings.TrimSpace(string(text)) == "0" {
		return true, nil
	}
	page := make([]byte, os.Getpagesize())
	if err := readAt(r.path(), page); err != nil {
		return false, err
	}
	id, ok := swapID(page)
	blank := strings.Trim(string(page), "\x00") == "" // its maker was killed before it wrote the header
	return blank || ok && id == r.ID, nil
}

func writeAt(device string, page []byte) error {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(page, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

func readAt(device string, page []byte) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	// Cached pages of the device may be older than what the kernel has swapped to it.
	if err := unix.Fadvise(int(f.Fd()), 0, int64(len(page)), unix.FADV_DONTNEED); err != nil {
		return err
	}
	_, err = f.ReadAt(page, 0)
	return err
}
