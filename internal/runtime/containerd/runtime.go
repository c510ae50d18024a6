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
	"wangell.loutres.me/internal/base/tasks"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
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
	tasks  tasks.Group // the goroutines that end with ctx

	mu       sync.Mutex
	pods     map[string]*pod
	ready    readyContainers
	prepared preparedPods
	members  map[string][]*member // containers beside the main one, by the pod's ID
	garbage  map[string]bool      // pods of which a failed call has left something behind
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

// remember lets the keeper remove the remains of a pod.
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

// pod is the state of one pod. Its fields are guarded by Runtime.mu, except stop.
type pod struct {
	runtime.Pod
	net podnet.Network
	// image is the image that it runs; zero if an earlier process started it.
	image imageInfo
	// snapshotter has its layer. If that is lazySnapshotter, lost says why its files are gone.
	snapshotter string
	lost        string
	// keeps is set if it holds volumes of its images, which no other pod may hold at the same time.
	keeps bool
	// exited is set once its process has exited and the Exit was delivered.
	exited bool
	// logBegin is the size of the service's log file when the pod was started.
	logBegin int64
	// cgroup is the path of the main container's cgroup.
	cgroup string
	// stop serializes the calls of Stop for the pod.
	stop sync.Mutex
}

// New connects to containerd, starting an own one if Config asks for it, adopts the running pods of this instance,
// removes other remains of an earlier process, and begins to keep networks ready. The calling thread must be in the
// network namespace for the pods' devices, such as the main thread. The error wraps runtime.ErrUnavailable if
// containerd does not answer. After an error, including the end of ctx, New leaves no own containerd that was not there
// before.
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
	for program, file := range map[podinit.Program]string{podinit.Init: cfg.initFile(), podinit.Wait: cfg.waitFile()} {
		if err := program.Install(file); err != nil {
			return nil, fmt.Errorf("write the first process of pods: %w", err)
		}
	}
	r := &Runtime{
		cfg: cfg, exits: make(chan runtime.Exit, 1024), ending: make(chan runtime.Ending, 1024),
		pods: map[string]*pod{}, garbage: map[string]bool{},
		members:   map[string][]*member{},
		ownCgroup: ownCgroupProcs(), volumes: volume.NewStore(cfg.StateDir, cfg.podsDir()),
		freezer: freezer.New(cgroupRoot),
	}
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
	own, err := StartOwn(ctx, OwnConfig{StateDir: r.cfg.StateDir, RunDir: r.cfg.RunDir, Log: r.cfg.Log,
		InsecureRegistries: r.cfg.InsecureRegistries})
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
	networks := podnet.Config{
		Dir: r.cfg.netnsDir(), Addresses: r.cfg.PodAddresses, DevicePrefix: r.cfg.DevicePrefix(),
		FormerPrefix: r.cfg.FormerDevicePrefix(), Ready: r.cfg.ReadyNetworks, MTU: r.cfg.MTU, Forward: r.cfg.Forward,
		Log: r.cfg.Log,
	}
	if names := r.cfg.Names; names != nil {
		networks.Attach, networks.Detach = names.Attach, names.Detach
	}
	if r.nets, err = podnet.NewPool(networks); err != nil {
		return err
	}
	r.lazy = &lazyPlugin{client: r.client, log: r.cfg.Log}
	if r.own != nil {
		r.lazy.own = &r.own.lazy
	}
	optimiser, err := newOptimiser(r.cfg)
	if err != nil {
		return err
	}
	if err := r.findSnapshotters(ctx); err != nil {
		return err
	}
	r.images = newImageCache(r.ctx, r.client, r.lazy, optimiser, r.snapshotters, r.cfg)
	r.ready.init(r.cfg.ReadyContainers)
	r.prepared.init()
	r.keeper.init()
	r.findLazy(ctx)
	// Before pods are removed: a shim that waits for the reader of a command's output does not stop its container.
	orphans, err := findOrphans(PipesDir(r.cfg.RunDir))
	if err != nil {
		r.cfg.Log.Warn("commands whose callers were killed may delay the end of their pods", "error", err)
	}
	err = r.adopt(ctx)
	r.endOrphans(orphans)
	if err != nil {
		return err
	}
	if err := r.nets.Clean(); err != nil {
		return fmt.Errorf("remove pod networks of an earlier process: %w", err)
	}
	if err := r.volumes.Sweep(); err != nil {
		r.cfg.Log.Warn("volumes that no pod uses cannot be unmounted", "error", err)
	}
	r.lazy.onUse(func() { r.tasks.Go(r.watchLazy); r.tasks.Go(r.watchFailures) })
	r.tasks.Go(r.keep)
	r.tasks.Go(r.keepNetworks)
	r.tasks.Go(r.watchImages)
	r.tasks.Go(r.rotateLogs)
	return nil
}

// Close disconnects from containerd, own or not, and removes ready networks and containers. Pods keep running.
func (r *Runtime) Close() error {
	r.stopTasks()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	errs = append(errs, r.removePrepared(ctx, func(*preparedPod) bool { return true }))
	for _, c := range r.dropReady(func(*container) bool { return true }) {
		errs = append(errs, r.removePod(ctx, c.id, ""))
	}
	return errors.Join(append(errs, r.letGo(release))...)
}

func release(o *Own) error {
	o.Release()
	return nil
}

// stopTasks ends the background goroutines and waits for them.
func (r *Runtime) stopTasks() {
	if r.cancel != nil {
		r.cancel()
	}
	r.tasks.Stop()
}

// letGo closes the resources of this process, and calls the function with the own containerd, if there is one.
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

// Destroy kills every pod of this instance, removes containers, snapshots, networks, cgroups and folders, and stops an
// own containerd. Images, logs and persistent volumes stay in StateDir. No method may be called afterwards.
func (r *Runtime) Destroy(ctx context.Context) error {
	r.stopTasks()
	err := retry(ctx, func() error { return r.removePods(ctx) })
	if err == nil {
		err = errors.Join(r.nets.Close(), r.nets.Clean(), r.volumes.Sweep())
	}
	if err != nil {
		return fmt.Errorf("remove pods: %w", errors.Join(err, r.letGo(release)))
	}
	errs := []error{removeCgroup(r.cfg.cgroup()), os.RemoveAll(r.cfg.initFile()), os.RemoveAll(r.cfg.waitFile()),
		r.client.Close()}
	if r.own != nil {
		// A containerd that was killed during a start may have left a shim without any other trace.
		errs = append(errs, r.killHelpers(""), r.own.Stop())
	}
	for _, dir := range []string{r.cfg.podsDir(), r.cfg.netnsDir(), r.cfg.runcRoot(), r.cfg.emptyDirs()} {
		errs = append(errs, UnmountBelow(dir), os.RemoveAll(dir))
	}
	_ = os.Remove(filepath.Dir(r.cfg.emptyDirs())) // unless another instance has some there
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

// TakeNetwork returns a network like that of a pod, for a program beside the pods. ReleaseNetwork or Destroy removes
// it.
func (r *Runtime) TakeNetwork() (podnet.Network, error) {
	n, err := r.nets.Take()
	if err == nil {
		r.keeper.kick() // the keeper makes another one ready
	}
	return n, err
}

// ReleaseNetwork removes a network of TakeNetwork by its name.
func (r *Runtime) ReleaseNetwork(name string) error { return r.nets.Release(name) }
