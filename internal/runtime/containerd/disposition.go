// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A thread may block all signals for a moment, as Go's runtime does when it starts another one, or end while it is
// looked at. So a process is looked at again before its threads count as those that wait for the signal.
const (
	looks        = 5
	betweenLooks = 2 * time.Millisecond
)

// endsByDefault reports whether a signal would end a process of a container by its default action, were the process not
// PID 1 of its namespace: there the kernel drops signals for which the process has no handler (pid_namespaces(7)). It
// reports false if that cannot be determined.
func endsByDefault(pid uint32, s unix.Signal) bool {
	for look := range looks {
		if look > 0 {
			time.Sleep(betweenLooks)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !unhandled(statusLines(string(text)), s) {
			return false
		}
		if nobodyWaits(pid, s) {
			return true
		}
	}
	return false
}

// nobodyWaits reports whether no thread of a process blocks a signal that it does not handle, as one does that fetches
// the signal with sigwait or a signalfd.
func nobodyWaits(pid uint32, s unix.Signal) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, thread := range threads {
		// While a thread is in sigwait, the kernel shows the signals that it waits for as not blocked. A thread that goes in
		// or out meanwhile shows them as blocked in one of the two looks.
		before, err := os.ReadFile(filepath.Join(thread, "status"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil || !dropped(string(before), s) {
			return false
		}
		call, err := os.ReadFile(filepath.Join(thread, "syscall"))
		if err != nil || inSigwait(string(call)) {
			return false
		}
		after, err := os.ReadFile(filepath.Join(thread, "status"))
		if err != nil || !dropped(string(after), s) {
			return false
		}
	}
	return true
}

// harmless are the signals whose default action does not end a process (signal(7)).
var harmless = []unix.Signal{
	unix.SIGCHLD, unix.SIGCONT, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGURG, unix.SIGWINCH,
}

// dropped reports whether the kernel drops a signal to a PID 1, from a thread's status file (proc_pid_status(5)). A
// signal that the process ignores, or blocks to fetch it with sigwait or a signalfd, is its own decision.
func dropped(status string, s unix.Signal) bool {
	lines := statusLines(status)
	return unhandled(lines, s) && !masked(lines["SigBlk"], s)
}

// unhandled reports whether a PID 1 neither handles nor ignores a signal that ends processes by default, from the lines
// of its status file or of that of one of its threads.
func unhandled(lines map[string]string, s unix.Signal) bool {
	if s < 1 || s > 64 || slices.Contains(harmless, s) {
		return false
	}
	pids := strings.Fields(lines["NStgid"])
	return len(pids) > 0 && pids[len(pids)-1] == "1" && !masked(lines["SigIgn"], s) && !masked(lines["SigCgt"], s)
}

// masked reports whether a signal is in a mask of a status file, or may be, as the mask cannot be read.
func masked(mask string, s unix.Signal) bool {
	bits, err := strconv.ParseUint(mask, 16, 64)
	return err != nil || bits>>(s-1)&1 != 0
}

// statusLines returns the lines of the status file of a process or thread by their names.
func statusLines(text string) map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		lines[name] = value
	}
	return lines
}

// sigwaits are the numbers of rt_sigtimedwait: that of 64-bit programs, and of 32-bit ones on both architectures.
var sigwaits = []string{map[string]string{"amd64": "128", "arm64": "137"}[goruntime.GOARCH], "177", "421"}

// inSigwait reports whether a thread waits for a signal, from its syscall file (proc_pid_syscall(5)).
func inSigwait(text string) bool {
	number, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	return slices.Contains(sigwaits, number)
}
