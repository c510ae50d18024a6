// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/base/process"
)

// purge removes a pod that a failure left behind. In addition to kill, it ends everything that containerd has lost
// track of because it was killed during a start: a shim, runc, and the processes in the pod's cgroup.
func (r *Runtime) purge(ctx context.Context, id string) error {
	if err := r.endTasks(ctx, id, &gracePeriod{}); err != nil {
		return err
	}
	ids := r.containersOf(id)
	for _, c := range ids {
		if err := r.killHelpers(c); err != nil {
			return fmt.Errorf("end shim and runc of container %s: %w", c, err)
		}
	}
	if err := r.thaw(id); err != nil {
		return err
	}
	if err := killCgroup(ctx, r.cfg.podCgroup(id)); err != nil {
		return fmt.Errorf("end processes of pod %s: %w", id, err)
	}
	for _, c := range ids {
		state := filepath.Join(r.cfg.runcStates(), c)
		if err := errors.Join(UnmountBelow(state), os.RemoveAll(state)); err != nil {
			return fmt.Errorf("remove runc's state of container %s: %w", c, err)
		}
	}
	return r.kill(ctx, id)
}

// killHelpers kills the shims and runcs of a pod without a task; with an empty ID those of all pods. It finds them by
// their command lines, and looks again until there is none, as one may have started another meanwhile.
func (r *Runtime) killHelpers(id string) error {
	for {
		killed, err := r.killHelpersOnce(id)
		if err != nil || !killed {
			return err
		}
	}
}

func (r *Runtime) killHelpersOnce(id string) (killed bool, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !r.isHelper(pid, id) {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue // it has exited
		}
		// Checked again, because the number may mean another process by now. p cannot.
		if !r.isHelper(pid, id) {
			p.Close()
			continue
		}
		if err := p.Stop(0); err != nil {
			return killed, err
		}
		killed = true
	}
	return killed, nil
}

// isHelper reports whether a process is the shim of a pod, the process that starts the shim, or runc working on the
// pod. An empty ID means any pod.
func (r *Runtime) isHelper(pid int, id string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	follows := func(flag, value string) bool {
		i := slices.Index(args, flag)
		return i >= 0 && i+1 < len(args) && args[i+1] == value
	}
	switch program := filepath.Base(args[0]); {
	case strings.HasPrefix(program, "containerd-shim"):
		return follows("-namespace", r.cfg.Namespace) && (id == "" || follows("-id", id)) &&
			follows("-address", r.address)
	case program == "runc":
		return follows("--root", r.cfg.runcStates()) && (id == "" || slices.Contains(args, id))
	}
	return false
}
