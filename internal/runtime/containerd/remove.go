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
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"wangell.loutres.me/internal/base/process"
)

// removePod removes the container, snapshot, network and folder of a pod that has no task. The network may be empty if
// the pod never had one, or if the pod's folder names it.
func (r *Runtime) removePod(ctx context.Context, id, network string) error {
	if network == "" {
		if target, err := os.Readlink(r.cfg.netnsLink(id)); err == nil {
			network = filepath.Base(target)
		}
	}
	ids := r.containersOf(id)
	// Three independent parts, each with waits of its own.
	var parts sync.WaitGroup
	errs := make([]error, 3)
	parts.Go(func() {
		if network != "" {
			errs[0] = r.nets.Release(network)
		}
	})
	parts.Go(func() {
		for _, c := range ids {
			errs[1] = errors.Join(errs[1], r.removeRecord(ctx, c))
		}
	})
	parts.Go(func() {
		// A process whose shim was killed while runc created it is still there, waiting for a start that never comes.
		cgroup := r.cfg.podCgroup(id)
		err := killCgroup(ctx, cgroup)
		errs[2] = errors.Join(err, removeCgroups(cgroup))
		for _, c := range ids {
			errs[2] = errors.Join(errs[2], r.removeShimSocket(c))
		}
	})
	parts.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Last, because the folder names the network.
	if err := r.removePodDir(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.members, id)
	r.mu.Unlock()
	return nil
}

// removeRecord removes a container and its snapshot.
func (r *Runtime) removeRecord(ctx context.Context, id string) error {
	// The container goes before its snapshot, so that no record is ever without its root file system.
	if err := absent(r.client.ContainerService().Delete(ctx, id)); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	var errs []error
	for _, s := range r.snapshottersOf(id) {
		if err := absent(r.client.SnapshotService(s).Remove(ctx, id)); err != nil {
			errs = append(errs, fmt.Errorf("remove snapshot: %w", err))
		}
	}
	return errors.Join(errs...)
}

// shimSockets is the folder of the shims' sockets, which does not depend on containerd's configuration.
const shimSockets = "/run/containerd/s"

// shimSocket is the socket of a pod's shim, computed as in containerd's package pkg/shim (SocketAddress) from 1.4 to
// 2.x. A killed shim leaves it behind.
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

// killHelpers kills the shim and runc processes of a pod without a task; with an empty ID, of all pods. It finds them
// by their command lines, and looks again until there is none, because one may have started another meanwhile.
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
		// Checked again, because the number may mean another process by now; p cannot.
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

// recordsWait is how long removeOrphans waits for the lock of the snapshotter's records.
const recordsWait = time.Second

// removeOrphans is removeOrphansOf for each snapshotter that keeps its snapshots in folders like overlayfs.
func removeOrphans(ctx context.Context, stateDir string) error {
	var errs []error
	for _, s := range []string{"overlayfs", "native", "erofs"} {
		if err := removeOrphansOf(ctx, snapshotterRoot(stateDir, s)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, err))
		}
	}
	return errors.Join(errs...)
}

// removeOrphansOf removes folders of snapshots that a stopped own containerd has no record of. A containerd that was
// killed between making a folder and recording it gives the next snapshot the same number, and each attempt would
// fail with "file exists" until containerd happens to collect garbage. containerd 1.x has no request for that. It
// fails if the records are in use or unreadable, or a folder cannot be removed.
func removeOrphansOf(ctx context.Context, root string) (err error) {
	records := filepath.Join(root, "metadata.db")
	if _, err := os.Stat(records); errors.Is(err, fs.ErrNotExist) {
		return nil // never started
	}
	store, err := storage.NewMetaStore(records, func(o *bolt.Options) error {
		o.Timeout = recordsWait
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.WithTransaction(ctx, false, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		folders := filepath.Join(root, "snapshots")
		entries, err := os.ReadDir(folders)
		if err != nil {
			return err
		}
		var errs []error
		for _, e := range entries {
			if _, ok := known[e.Name()]; !ok {
				errs = append(errs, os.RemoveAll(filepath.Join(folders, e.Name())))
			}
		}
		return errors.Join(errs...)
	})
}
