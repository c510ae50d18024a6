// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"wangell.loutres.me/internal/base/cgroup"
)

// Memory is what the processes of a cgroup have in RAM and in swap, in bytes. Page cache counts as RAM.
type Memory struct{ Resident, Swapped uint64 }

// ErrNoSwap is returned by Reclaim on a machine without swap.
var ErrNoSwap = errors.New("the machine has no swap: set one up, for example with zram")

// swaps lists the swap areas, after a line of titles.
const swaps = "/proc/swaps"

// reclaimStep is the amount of a request to memory.reclaim, in bytes. Between steps the caller may give up.
const reclaimStep = 16 << 20

// Reclaim moves memory of a cgroup to swap, as much of it as the kernel can, and returns when that is done, or soon
// after ctx has ended. With version 1 of cgroups, the kernel does it in one go.
func (f *Freezer) Reclaim(ctx context.Context, path string) error {
	text, err := os.ReadFile(swaps)
	if err != nil {
		return err
	}
	if strings.Count(string(text), "\n") < 2 {
		return ErrNoSwap
	}
	dir := filepath.Join(f.root, path)
	if _, err := os.Stat(filepath.Join(dir, "memory.reclaim")); errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
		return f.write("memory.force_empty", filepath.Join(f.root, "memory", path), "0")
	}
	for ctx.Err() == nil {
		before, err := f.Memory(path)
		if err != nil {
			return err
		}
		// EAGAIN: less than that could be reclaimed.
		err = f.write("memory.reclaim", dir, strconv.Itoa(reclaimStep))
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		if after, err := f.Memory(path); err != nil || after.Resident >= before.Resident {
			return err
		}
	}
	return nil
}

func (f *Freezer) write(file, dir, text string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("reclaiming memory: %w", err)
	}
	return nil
}

// Memory measures a cgroup.
func (f *Freezer) Memory(path string) (m Memory, err error) {
	files := cgroup.Memory(f.root, path)
	if m.Resident, err = cgroup.Number(files.Current); err != nil {
		return m, err
	}
	m.Swapped, err = cgroup.Number(files.Swap)
	if files.SwapAndRAM {
		m.Swapped -= min(m.Swapped, m.Resident)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the kernel does not account for swap
	}
	return m, err
}
