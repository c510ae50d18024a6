// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TrimResident returns memory that only the start of this program needed: garbage on the heap, and pages of the
// program's own file. The linker spreads the code and tables of initialisers over the whole program, and the kernel
// maps 64 KiB around each page that is read, so that most of the file stays mapped. The pages remain in the page cache;
// those that are needed again are mapped again without I/O. It takes some milliseconds.
func TrimResident() error {
	debug.FreeOSMemory()
	status, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("trimming resident memory: %w", err)
	}
	defer status.Close()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("trimming resident memory: %w", err)
	}
	areas, err := unmodified(status, program)
	if err != nil {
		return fmt.Errorf("trimming resident memory: /proc/self/smaps: %w", err)
	}
	for _, a := range areas {
		// By number, because the addresses are not of memory that Go has allocated.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, a.start, a.end-a.start, unix.MADV_DONTNEED); errno != 0 {
			err = errors.Join(err, fmt.Errorf("trimming resident memory: area %x-%x: %w", a.start, a.end, errno))
		}
	}
	return err
}

// area is a range of addresses.
type area struct{ start, end uintptr }

// unmodified returns the read-only areas of smaps (proc_pid_smaps(5)) that map the file and equal it. An area with
// anonymous pages, such as one that a dynamic linker has relocated, is left out: its contents are nowhere else.
func unmodified(smaps io.Reader, file string) ([]area, error) {
	var areas []area
	var current area
	var candidate bool
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") {
			start, end, ok := strings.Cut(fields[0], "-")
			first, err := strconv.ParseUint(start, 16, 64)
			last, err2 := strconv.ParseUint(end, 16, 64)
			if !ok || err != nil || err2 != nil {
				return nil, fmt.Errorf("unexpected line %q", lines.Text())
			}
			current = area{uintptr(first), uintptr(last)}
			candidate = len(fields) == 6 && fields[5] == file && !strings.Contains(fields[1], "w")
			continue
		}
		if candidate && fields[0] == "Anonymous:" && fields[1] == "0" {
			areas = append(areas, current)
		}
	}
	return areas, lines.Err()
}
