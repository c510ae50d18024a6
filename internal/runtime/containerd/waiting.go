// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
)

// waitEvery is the interval at which a new process is checked until it waits.
const waitEvery = time.Millisecond

// unblocked are the signals that podinit.Wait does not block, and that the kernel does not let it block.
const unblocked uint64 = 1<<(podinit.Wake-1) | 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)

// inWait is isWaiting, from the process's status file (proc_pid_status(5)). While the process waits, the kernel shows
// the signal as not blocked.
func inWait(status string) bool {
	lines := statusLines(status)
	blocked, err := strconv.ParseUint(lines["SigBlk"], 16, 64)
	return err == nil && blocked|unblocked == ^uint64(0) && lines["Name"] == filepath.Base(waitPath) &&
		!strings.ContainsAny(lines["State"], "ZXT") // ended or stopped
}

// isWaiting reports whether a process is podinit.Wait and keeps the signal that it waits for.
func isWaiting(pid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && inWait(string(text))
}

// awaitWaits returns once a process that was just started waits.
func awaitWaits(ctx context.Context, pid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	for {
		if ended(pid) {
			return errors.New("its first process has ended")
		}
		if isWaiting(pid) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its first process does not wait: %w", ctx.Err())
		case <-time.After(waitEvery):
		}
	}
}

// waits reports whether its process still waits.
func (p *preparedPod) waits() bool {
	begun, err := processStart(p.pid)
	return err == nil && max(begun.Sub(p.begun), p.begun.Sub(begun)) < 2*process.Tick && isWaiting(p.pid)
}

// hold returns the process of a prepared pod if it still waits, and nil otherwise. The caller closes it.
func (p *preparedPod) hold() *process.Process {
	held, err := process.Open(int(p.pid))
	if err != nil {
		return nil
	}
	if !p.waits() { // checked only after the process was opened, as its PID may have been reused before
		held.Close()
		return nil
	}
	return held
}

// wake makes the process of a prepared pod become the pod's program, and returns the time of that. The time is
// recorded first, so that another process of Wangell knows that the pod is no longer merely prepared.
func (r *Runtime) wake(ctx context.Context, p *preparedPod) (monotime.Time, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	now := monotime.Now()
	if err := os.WriteFile(r.cfg.wokenFile(p.ID), []byte(strconv.FormatInt(int64(now), 10)), 0o600); err != nil {
		return 0, err
	}
	return now, p.held.Signal(podinit.Wake)
}

// woken returns when a prepared pod was woken.
func (r *Runtime) woken(id string) (monotime.Time, error) {
	text, err := os.ReadFile(r.cfg.wokenFile(id))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return monotime.Time(n), err
}

// onlyPrepared reports whether the first process of a pod's container runs, but not yet the pod's program.
func (r *Runtime) onlyPrepared(id string, labels map[string]string, pid uint32) bool {
	if labels[labelPrepared] == "" {
		return false
	}
	if _, err := r.woken(id); err != nil {
		return true
	}
	return isWaiting(pid) // Wangell was killed before it sent the signal
}
