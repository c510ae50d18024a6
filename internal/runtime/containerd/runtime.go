// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/podnet"
)

// Runtime runs pods through one containerd. It implements runtime.Runtime.
type Runtime struct {
	cfg Config
	own *Own // nil if the containerd is not ours
	// address is containerd's socket.
	address string
	client  *client.Client
	nets    *podnet.Pool
	images  imageCache
	// ownCgroup is the cgroup.procs of this process, see warmCgroups.
	ownCgroup string

	exits  chan runtime.Exit
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the goroutines that end with ctx

	mu      sync.Mutex
	pods    map[string]*pod
	ready   readyContainers
	garbage map[string]bool // pods of which a failed call left something
	keeper  keeper
}

// pod is what is known of one pod. Its fields are guarded by Runtime.mu, except stop.
type pod struct {
	runtime.Pod
	net podnet.Network
	// exited: its process has ended and the exit was told.
	exited bool
	// logBegin is the size of the service's log file when it was started.
	logBegin int64
	// stop lets one Stop of the pod run at a time.
	stop sync.Mutex
}

var _ runtime.Runtime = (*Runtime)(nil)

// New connects to containerd, starting an own one if Config says so, takes over the pods of this instance that
// run, removes what an earlier process left otherwise, and begins to make networks ready. It is called on a thread of the
// network namespace in which the pods' devices shall be, as main is. The error wraps
// runtime.ErrUnavailable if containerd does not answer. After an error, as when ctx ends, no own containerd is left that
// was not there before.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for dir, mode := range map[string]os.FileMode{cfg.logDir(): 0o750, cfg.podsDir(): 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, fmt.Errorf("make folder: %w", err)
		}
	}
	r := &Runtime{cfg: cfg, exits: make(chan runtime.Exit, 1024), pods: map[string]*pod{}, garbage: map[string]bool{}, ownCgroup: ownCgroupProcs()}
	address, err := r.chooseContainerd(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.open(ctx, address); err != nil {
		return nil, errors.Join(err, r.letGo((*Own).Return))
	}
	return r, nil
}

// chooseContainerd returns the socket to use.
func (r *Runtime) chooseContainerd(ctx context.Context) (string, error) {
	address := r.cfg.Containerd
	if address == Auto {
		address = SystemSocket
		if _, err := Dial(ctx, address); err != nil {
			address = Owned
		}
	}
	if address != Owned {
		_, err := Dial(ctx, address)
		return address, err
	}
	own, err := StartOwn(ctx, OwnConfig{StateDir: r.cfg.StateDir, RunDir: r.cfg.RunDir, Log: r.cfg.Log})
	if err != nil {
		return "", err
	}
	r.own = own
	return own.Address(), nil
}

func (r *Runtime) open(ctx context.Context, address string) (err error) {
	r.address = address
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if r.client, err = connect(address, r.cfg.Namespace); err != nil {
		return err
	}
	r.nets, err = podnet.NewPool(podnet.Config{
		Dir: filepath.Join(r.cfg.RunDir, "netns"), Addresses: r.cfg.PodAddresses, DevicePrefix: r.cfg.devicePrefix(),
		Ready: r.cfg.ReadyNetworks, MTU: r.cfg.MTU, Log: r.cfg.Log,
	})
	if err != nil {
		return err
	}
	r.images.init(r)
	r.ready.init(r.cfg.ReadyContainers)
	r.keeper.init()
	if err := r.adopt(ctx); err != nil {
		return err
	}
	if err := r.nets.Clean(); err != nil {
		return fmt.Errorf("remove pod networks of an earlier process: %w", err)
	}
	r.tasks.Go(r.keep)
	r.tasks.Go(r.rotateLogs)
	return nil
}

// List tells the pods, sorted by ID. It answers from what this process knows, also while containerd is away.
func (r *Runtime) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]runtime.Pod, 0, len(r.pods))
	for _, id := range slices.Sorted(maps.Keys(r.pods)) {
		list = append(list, r.pods[id].Pod)
	}
	return list, nil
}

// Exits delivers the end of every pod's process, see runtime.Runtime. The exit of a process that ends at once
// may be delivered before Start has returned its pod.
func (r *Runtime) Exits() <-chan runtime.Exit { return r.exits }

// Versions names containerd and runc, and the kernel.
func (r *Runtime) Versions(ctx context.Context) map[string]string {
	versions := map[string]string{"snapshotter": snapshotter}
	if v, err := r.client.Version(ctx); err == nil {
		versions["containerd"] = v.Version
	}
	if out, err := exec.CommandContext(ctx, "runc", "--version").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		versions["runc"] = strings.TrimPrefix(first, "runc version ")
	}
	return versions
}

// Client is the connection to containerd, for what concerns images and not pods.
func (r *Runtime) Client() *client.Client { return r.client }

// Close lets go of containerd, own or not, and removes what was kept ready; pods go on.
func (r *Runtime) Close() error {
	r.stopTasks()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, c := range r.dropReady(func(*container) bool { return true }) {
		errs = append(errs, r.removePod(ctx, c.id, ""))
	}
	return errors.Join(append(errs, r.letGo(release))...)
}

func release(o *Own) error {
	o.Release()
	return nil
}

// stopTasks ends the goroutines and waits for them.
func (r *Runtime) stopTasks() {
	if r.cancel != nil {
		r.cancel()
	}
	r.tasks.Wait()
}

// letGo closes what the process holds, and does with an own containerd what is said.
func (r *Runtime) letGo(own func(*Own) error) error {
	r.stopTasks()
	var errs []error
	if r.nets != nil {
		errs = append(errs, r.nets.Close())
	}
	if r.client != nil {
		errs = append(errs, r.client.Close())
	}
	if r.own != nil {
		errs = append(errs, own(r.own))
	}
	return errors.Join(errs...)
}

// Destroy kills every pod of this instance and removes containers, snapshots, networks, cgroups and folders; an own
// containerd is stopped. Images and logs stay, in StateDir. Nothing of r may be called afterwards.
func (r *Runtime) Destroy(ctx context.Context) error {
	r.stopTasks()
	err := retry(ctx, func() error { return r.removePods(ctx) })
	if err == nil {
		err = errors.Join(r.nets.Close(), r.nets.Clean())
	}
	if err != nil {
		return fmt.Errorf("remove pods: %w", errors.Join(err, r.letGo(release)))
	}
	errs := []error{r.removeCgroups(), r.client.Close()}
	if r.own != nil {
		errs = append(errs, r.own.Stop())
	}
	for _, dir := range []string{r.cfg.podsDir(), filepath.Join(r.cfg.RunDir, "netns"), r.runcRoot()} {
		errs = append(errs, unmountBelow(dir), os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// removePods kills and removes all pods of this instance.
func (r *Runtime) removePods(ctx context.Context) error {
	found, err := r.instanceContainers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for id := range found {
		errs = append(errs, r.purge(ctx, id))
	}
	return errors.Join(errs...)
}

// runcRoot is where runc keeps the state of running containers.
func (r *Runtime) runcRoot() string { return filepath.Join(r.cfg.RunDir, "runc") }
