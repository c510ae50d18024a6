// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// purge removes a pod that a failure left. It is kill, and ends what containerd does not know of because it was killed while
// it had it started: a shim, runc, and the processes in the pod's cgroup.
func (r *Runtime) purge(ctx context.Context, id string) error {
	if err := r.endTask(ctx, id, 0); err != nil {
		return err
	}
	if err := r.killHelpers(id); err != nil {
		return fmt.Errorf("end shim and runc of pod %s: %w", id, err)
	}
	if err := killCgroup(ctx, filepath.Join(r.cfg.cgroup(), id)); err != nil {
		return fmt.Errorf("end processes of pod %s: %w", id, err)
	}
	state := filepath.Join(r.runcStates(), id)
	if err := errors.Join(unmountBelow(state), os.RemoveAll(state)); err != nil {
		return fmt.Errorf("remove runc's state of pod %s: %w", id, err)
	}
	return r.kill(ctx, id)
}

// killHelpers ends the shims and runcs of a pod, which must have no task any more, found by their command line. It looks
// until there is none, because one may have started another since they were listed.
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
		p, err := openProcess(pid)
		if err != nil {
			continue // it ended
		}
		// Once more: the number may mean another process by now, but not behind p.
		if !r.isHelper(pid, id) {
			p.close()
			continue
		}
		if err := p.stop(0); err != nil {
			return killed, err
		}
		killed = true
	}
	return killed, nil
}

// isHelper tells whether a process is the shim of a pod, the process that starts it, or runc at work on the pod.
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
		return follows("-namespace", r.cfg.Namespace) && follows("-id", id) && follows("-address", r.address)
	case program == "runc":
		return follows("--root", r.runcStates()) && slices.Contains(args, id)
	}
	return false
}

// runcStates is where the shims have runc keep its state: a folder per containerd namespace.
func (r *Runtime) runcStates() string { return filepath.Join(r.runcRoot(), r.cfg.Namespace) }

// shimSockets does not depend on containerd's configuration.
const shimSockets = "/run/containerd/s"

// shimSocket is the socket of a pod's shim, as containerd's package pkg/shim has it (SocketAddress), from 1.4 to 2.x. It
// is left if the shim is killed.
func (r *Runtime) shimSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(r.address, r.cfg.Namespace, id)))
	return filepath.Join(shimSockets, hex.EncodeToString(sum[:]))
}

func (r *Runtime) removeShimSocket(id string) error {
	if err := os.Remove(r.shimSocket(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
