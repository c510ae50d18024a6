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
	"sync"
)

// removePod removes the container, snapshot, network and folder of a pod that has no task. The network may be empty for
// a pod that never had one, or whose network only the folder names.
func (r *Runtime) removePod(ctx context.Context, id, network string) error {
	if network == "" {
		if target, err := os.Readlink(r.cfg.netnsLink(id)); err == nil {
			network = filepath.Base(target)
		}
	}
	ids := r.containersOf(id)
	// Three independent parts, each of which waits for something else.
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
// 2.x. It is left behind if the shim is killed.
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
