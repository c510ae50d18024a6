// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/podnet"
)

// Runtime runs pods through one containerd. It implements runtime.Runtime.
type Runtime struct {
	cfg Config
	own *Own // nil with a containerd of the machine
	// address is containerd's socket.
	address string
	client  *client.Client
	nets    *podnet.Pool
	images  *imageCache
	lazy    *lazyPlugin
	volumes *volume.Store
	// snapshotters are containerd's snapshotters that may have layers of this instance, apart from lazySnapshotter.
	snapshotters []string
	freezer      *freezer.Freezer
	// ownCgroup is the cgroup.procs of this process; see warmCgroups.
	ownCgroup string

	exits  chan runtime.Exit
	ending chan runtime.Ending
	ctx    context.Context // cancelled by Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the goroutines that end with ctx

	mu       sync.Mutex
	pods     map[string]*pod
	ready    readyContainers
	prepared preparedPods
	members  map[string][]*member // containers beside the main one, by the pod's ID
	garbage  map[string]bool      // pods of which a failed call left something behind
	keeper   keeper
}

var _ runtime.Runtime = (*Runtime)(nil)

// List returns the pods, sorted by ID. It needs no answer from containerd.
func (r *Runtime) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]runtime.Pod, 0, len(r.pods))
	for _, id := range slices.Sorted(maps.Keys(r.pods)) {
		list = append(list, r.pods[id].Pod)
	}
	return list, nil
}

// Exits delivers the exit of every pod; see runtime.Runtime. The exit of a short-lived process may be delivered before
// Start has returned its pod.
func (r *Runtime) Exits() <-chan runtime.Exit { return r.exits }

// Ending delivers every pod whose process has got its stop signal; see runtime.Runtime.
func (r *Runtime) Ending() <-chan runtime.Ending { return r.ending }

// Versions returns the versions of containerd and runc, and the name of the snapshotter.
func (r *Runtime) Versions(ctx context.Context) map[string]string {
	versions := map[string]string{"snapshotter": r.cfg.snapshotter()}
	if v, err := r.client.Version(ctx); err == nil {
		versions["containerd"] = v.Version
	}
	if out, err := exec.CommandContext(ctx, "runc", "--version").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		versions["runc"] = strings.TrimPrefix(first, "runc version ")
	}
	return versions
}

// Client returns the connection to containerd, for operations on images.
func (r *Runtime) Client() *client.Client { return r.client }

// remember schedules the remains of a pod for removal by the keeper.
func (r *Runtime) remember(id string) {
	r.mu.Lock()
	r.garbage[id] = true
	r.mu.Unlock()
	r.keeper.kick()
}

// RemoveVolume removes a persistent volume. Pods that hold it keep its files until they end.
func (r *Runtime) RemoveVolume(ctx context.Context, id volume.ID) error {
	return r.volumes.Remove(ctx, id)
}

// Address returns the socket of the containerd in use.
func (r *Runtime) Address() string { return r.address }
