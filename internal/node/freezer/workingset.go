// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of a WorkingSet. Memory beyond them is left to page faults.
const (
	maxSetBytes  = 256 << 20
	maxSetRanges = 16 << 10
)

// WorkingSet is the memory that processes have used since Reclaim: the pages that are mapped. It is valid as long as
// these processes live.
type WorkingSet struct {
	// Bytes is its size.
	Bytes     uint64
	processes []touched
}

// touched are pages of a process.
type touched struct {
	pid    int
	start  uint64 // of the process, in clock ticks since boot
	ranges []unix.RemoteIovec
}

// WorkingSet returns the working set of a cgroup whose memory was given back by Reclaim before its processes ran. It
// needs Linux 6.7 (PAGEMAP_SCAN), and fails with ErrNoScan on older kernels. A set has at most 256 MiB, in 16,384
// ranges.
//
// See https://docs.kernel.org/admin-guide/mm/pagemap.html.
func (f *Freezer) WorkingSet(cgroup string) (*WorkingSet, error) {
	pids, err := f.processes(cgroup)
	if err != nil {
		return nil, err
	}
	set := &WorkingSet{}
	left := maxSetRanges
	for _, pid := range pids {
		p, ok := readProcess(pid)
		if !ok {
			continue
		}
		t := touched{pid: pid, start: p.start}
		size, err := t.scan(left, maxSetBytes-set.Bytes)
		if err != nil {
			return nil, err
		}
		if left -= len(t.ranges); len(t.ranges) > 0 {
			set.processes = append(set.processes, t)
		}
		set.Bytes += size
	}
	return set, nil
}

// ErrNoScan is returned by WorkingSet if the kernel cannot list the pages of a process.
var ErrNoScan = errors.New("the kernel cannot list the pages of a process (PAGEMAP_SCAN, Linux 6.7)")

// pageScan is struct pm_scan_arg of linux/fs.h.
type pageScan struct {
	size, flags                          uint64
	start, end, walkEnd                  uint64
	vec, vecLen, maxPages                uint64
	inverted, all, anyOf, returnedToUser uint64
}

// pageRegion is struct page_region.
type pageRegion struct {
	start, end uint64
	_          uint64 // categories
}

// From linux/fs.h.
const (
	ioctlScan   = 0xc0606610 // PAGEMAP_SCAN
	pagePresent = 1 << 3     // PAGE_IS_PRESENT
	pageZero    = 1 << 5     // PAGE_IS_PFNZERO
)

// lastAddress returns the end of the addresses of processes, 0 if this architecture is not known.
func lastAddress() uint64 {
	switch runtime.GOARCH {
	case "amd64":
		return 1<<47 - 4096
	case "arm64":
		return 1 << 48
	}
	return 0
}

// regionsAtOnce is the number of ranges in one request to the kernel.
const regionsAtOnce = 512

// scan adds at most as many ranges and bytes as given, and returns the number of bytes. A process that has ended has
// none.
func (t *touched) scan(ranges int, bytes uint64) (size uint64, err error) {
	pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", t.pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer pages.Close()
	var regions [regionsAtOnce]pageRegion
	page := uint64(os.Getpagesize())
	for arg := (pageScan{end: lastAddress()}); arg.start < arg.end && ranges > 0 && size+page <= bytes; {
		arg.size = uint64(unsafe.Sizeof(arg))
		arg.vec, arg.vecLen = uint64(uintptr(unsafe.Pointer(&regions))), uint64(min(len(regions), ranges))
		arg.maxPages = (bytes - size) / page
		arg.all, arg.inverted, arg.returnedToUser = pagePresent|pageZero, pageZero, pagePresent
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pages.Fd(), ioctlScan, uintptr(unsafe.Pointer(&arg)))
		runtime.KeepAlive(&regions)
		switch errno {
		case 0:
		case unix.ENOTTY:
			return 0, ErrNoScan
		case unix.ESRCH: // it has ended
			return size, nil
		default:
			return 0, fmt.Errorf("list the pages of process %d: %w", t.pid, errno)
		}
		for _, r := range regions[:n] {
			t.ranges = append(t.ranges, unix.RemoteIovec{Base: uintptr(r.start), Len: int(r.end - r.start)})
			size += r.end - r.start
		}
		ranges -= int(n)
		if n == 0 && arg.walkEnd <= arg.start {
			return size, nil
		}
		arg.start = arg.walkEnd
	}
	return size, nil
}

// Fetch makes the kernel read the pages of a working set that are in swap or in files, so that the processes need not
// wait for each of them. It returns when all pages are read. Processes that have ended are left out, and so are pages
// that have been unmapped.
//
// See process_madvise(2), MADV_WILLNEED, which needs CAP_SYS_NICE and the right to read the process.
func (s *WorkingSet) Fetch() error {
	var errs []error
	for _, t := range s.processes {
		if err := t.fetch(); err != nil {
			errs = append(errs, fmt.Errorf("fetch pages of process %d: %w", t.pid, err))
		}
	}
	return errors.Join(errs...)
}

// mostVectors is UIO_MAXIOV.
const mostVectors = 1024

func (t touched) fetch() error {
	process, err := unix.PidfdOpen(t.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(process)
	if p, ok := readProcess(t.pid); !ok || p.start != t.start {
		return nil // the process ID belongs to another one
	}
	for left := t.ranges; len(left) > 0; {
		some := left[:min(len(left), mostVectors)]
		n, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(process), uintptr(unsafe.Pointer(&some[0])),
			uintptr(len(some)), unix.MADV_WILLNEED, 0, 0)
		switch errno {
		case 0:
			left = left[behind(some, int(n)):]
		case unix.ENOMEM, unix.EINVAL, unix.EBADF: // the first range is not mapped, or its source cannot be read
			left = left[1:]
		case unix.ESRCH:
			return nil
		case unix.EINTR:
		default:
			return syscall.Errno(errno)
		}
	}
	return nil
}

// behind returns the number of vectors that hold n bytes, at least one.
func behind(vectors []unix.RemoteIovec, n int) int {
	for i, v := range vectors {
		if n -= v.Len; n < 0 {
			return max(i, 1)
		}
	}
	return len(vectors)
}
