// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The threads of a process are looked at more than once: one that starts another blocks all signals for a moment, as
// the new one does.
const (
	betweenLooks = 2 * time.Millisecond
	// surely is the number of consecutive looks in which every thread must wait for the signal before the answer
	// counts.
	surely = 5
	// atMost limits the number of looks at a process whose threads are too busy for a clear answer.
	atMost = 50
)

// endsByDefault reports whether a signal would end a process of a container by its default action, were the process not
// PID 1 of its namespace: there the kernel drops signals for which the process has no handler (pid_namespaces(7)). It
// would end unless every thread blocks the signal, to fetch it with sigwait or a signalfd. endsByDefault reports false
// if that cannot be determined.
func endsByDefault(pid uint32, s unix.Signal) bool {
	waiting := 0
	for look := range atMost {
		if look > 0 {
			time.Sleep(betweenLooks)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !unhandled(statusLines(string(text)), s) {
			return false
		}
		switch lookAt(pid, s) {
		case open:
			return true
		case waits:
			if waiting++; waiting == surely {
				return false
			}
		default:
			waiting = 0
		}
	}
	return false
}

// A view says what a thread, or all threads of a process, does with a signal without a handler.
type view int

const (
	unclear view = iota // the thread does something else by now, or has ended
	open                // the signal reaches the thread, and takes its default action
	waits               // the thread blocks the signal, or waits for it
)

// lookAt returns open if the signal reaches a thread of a process, and waits if it certainly reaches none.
func lookAt(pid uint32, s unix.Signal) view {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		return unclear
	}
	all := waits
	for _, thread := range threads {
		switch viewOfThread(thread, s) {
		case open:
			return open
		case unclear:
			all = unclear
		}
	}
	return all
}

// viewOfThread is viewOf for a thread's folder in /proc.
func viewOfThread(folder string, s unix.Signal) view {
	var texts [3]string
	for i, name := range []string{"status", "syscall", "status"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil { // it has ended
			return unclear
		}
		texts[i] = string(text)
	}
	return viewOf(texts[0], texts[1], texts[2], s)
}

// viewOf returns what a thread does with a signal, from its status file (proc_pid_status(5)), its syscall file
// (proc_pid_syscall(5)), and its status file again. While a thread is in sigwait, the kernel shows the signals that it
// waits for as not blocked.
func viewOf(before, call, after string, s unix.Signal) view {
	first, last := statusLines(before), statusLines(after)
	switch {
	case !unhandled(first, s) || !unhandled(last, s):
		return unclear
	case masked(first["SigBlk"], s) && masked(last["SigBlk"], s):
		if strings.HasPrefix(last["State"], "R") {
			return unclear // it may be about to unblock it
		}
		return waits
	case first["voluntary_ctxt_switches"] != last["voluntary_ctxt_switches"] || first["SigBlk"] != last["SigBlk"]:
		return unclear // it has slept: it may have left sigwait and entered it again
	case inSigwait(call):
		return waits
	}
	return open
}

// harmless are the signals whose default action does not end a process (signal(7)).
var harmless = []unix.Signal{
	unix.SIGCHLD, unix.SIGCONT, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGURG, unix.SIGWINCH,
}

// unhandled reports whether a PID 1 neither handles nor ignores a signal that ends processes by default, from the lines
// of its status file, or of the status file of one of its threads.
func unhandled(lines map[string]string, s unix.Signal) bool {
	if s < 1 || s > 64 || slices.Contains(harmless, s) {
		return false
	}
	pids := strings.Fields(lines["NStgid"])
	return len(pids) > 0 && pids[len(pids)-1] == "1" && !masked(lines["SigIgn"], s) && !masked(lines["SigCgt"], s)
}

// masked reports whether a signal is in a mask of a status file. It returns true if the mask cannot be read.
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

// sigwaits are the system call numbers of rt_sigtimedwait: in 64-bit programs, and in 32-bit ones on both
// architectures.
var sigwaits = []string{map[string]string{"amd64": "128", "arm64": "137"}[goruntime.GOARCH], "177", "421"}

// inSigwait reports whether a thread waits for a signal, from its syscall file (proc_pid_syscall(5)).
func inSigwait(text string) bool {
	number, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	return slices.Contains(sigwaits, number)
}
