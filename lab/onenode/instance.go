// SPDX-License-Identifier: Apache-2.0

// Package onenode runs an instance of Wangell on one machine for experiments: in network namespaces and folders of its
// own, with a containerd of its own. It leaves nothing behind. It also measures the floor: the time that the same
// containerd needs for the same container without Wangell.
package onenode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/test/testutil/netlab"
)

// Pod address ranges, outside of the link's (netlab.DefaultLink).
var (
	podAddresses   = netip.MustParsePrefix("10.46.128.0/20")
	floorAddresses = netip.MustParsePrefix("10.46.144.0/20")
)

// SettleTimeout is how long an instance may take to reach an expected state.
const SettleTimeout = time.Minute

// stopTimeout is how long an instance may take to end: with a thousand pods, minutes.
const stopTimeout = 10 * time.Minute

// Instance is an instance of Wangell on the node of a network, with a containerd of its own.
type Instance struct {
	// Net is the network: the node with the instance, and its clients.
	Net *netlab.Net
	// Control is connected to the instance. It is set by Start.
	Control *httpapi.Client
	// Flags are further flags of `wangell up`. They are set before Start.
	Flags []string
	// Env is added to the environment of its programs. It is set before anything else is called.
	Env []string

	services       netip.Prefix // the range of service addresses
	wangell        string       // the program
	containerd     *client.Client
	cmd            *exec.Cmd
	ended          chan struct{} // closed when cmd has ended, with endErr
	endErr         error
	stdout, stderr tail

	baseDir, stateDir, runDir, floorRun string

	scope  netlab.Scope
	before netlab.Snapshot
}

// NewInstance makes the network and the folders of an instance of a wangell program whose service addresses are from
// services. The caller must call Close, also when another method fails.
func NewInstance(wangell string, services netip.Prefix) (*Instance, error) {
	return NewInstanceOn(wangell, netlab.Config{Services: services})
}

// NewInstanceOn is NewInstance with a network of another shape.
func NewInstanceOn(wangell string, network netlab.Config) (*Instance, error) {
	return NewInstanceIn("", wangell, network)
}

// NewInstanceIn is NewInstanceOn with all folders, including those of images, layers and volumes, in the folder dir;
// empty means the folder for temporary files. The path must be short, because there are sockets below it.
func NewInstanceIn(dir, wangell string, network netlab.Config) (_ *Instance, err error) {
	if !network.Services.IsValid() {
		network.Services = netlab.DefaultServices
	}
	i := &Instance{wangell: wangell, services: network.Services}
	if i.baseDir, err = os.MkdirTemp(dir, "wangell-lab-"); err != nil {
		return nil, err
	}
	i.stateDir, i.runDir = filepath.Join(i.baseDir, "state"), filepath.Join(i.baseDir, "run")
	i.floorRun = filepath.Join(i.baseDir, "floor-run")
	i.scope = netlab.Scope{Paths: []string{i.baseDir}, Cgroups: []string{cgroup(i.runDir), cgroup(i.floorRun)}}
	if i.before, err = netlab.TakeSnapshot(i.scope); err == nil {
		i.Net, err = netlab.New(network)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(i.baseDir))
	}
	return i, nil
}

// StateDir is the instance's state folder.
func (i *Instance) StateDir() string { return i.stateDir }

// cgroup returns a part of the path of every cgroup of the runtime with this run folder; see
// containerd.Config.Instance.
func cgroup(runDir string) string {
	sum := sha256.Sum256([]byte(runDir))
	return "wangell-" + hex.EncodeToString(sum[:4])
}

// LoadImage loads a tarball into the instance's containerd, or the hello image if file is empty.
func (i *Instance) LoadImage(ctx context.Context, file string) error {
	if file == "" {
		img, err := image.Hello(ctx)
		if err != nil {
			return err
		}
		file = filepath.Join(i.baseDir, "image.tar")
		if err := image.WriteFile(file, image.HelloTag, img); err != nil {
			return err
		}
	}
	return i.run(ctx, "image", "load", file, "--state-dir", i.stateDir, "--containerd", "own")
}

// run runs a command of wangell for this instance.
func (i *Instance) run(ctx context.Context, args ...string) error {
	cmd := i.Net.Node.Command(ctx, append(append([]string{i.wangell}, args...), "--run-dir", i.runDir)...)
	cmd.Env = append(os.Environ(), i.Env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("wangell %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Start runs `wangell up` with a manifest. It returns once the instance can wake its services.
func (i *Instance) Start(ctx context.Context, manifest []byte) error {
	file := filepath.Join(i.baseDir, "services.yaml")
	if err := os.WriteFile(file, manifest, 0o644); err != nil {
		return err
	}
	// Close ends it by SIGTERM, so that it cleans up; the context would kill it.
	argv := []string{i.wangell, "up", "-f", file, "--state-dir", i.stateDir, "--run-dir", i.runDir, "--containerd", "own",
		"--interface", netlab.Device, "--addresses", i.services.String(), "--pod-addresses", podAddresses.String(),
		"--metrics-address", "", "-o", "json"}
	i.cmd = i.Net.Node.Command(context.Background(), append(argv, i.Flags...)...)
	i.cmd.Stdout, i.cmd.Stderr = &i.stdout, &i.stderr
	i.cmd.Env = append(os.Environ(), i.Env...)
	if err := i.cmd.Start(); err != nil {
		return fmt.Errorf("wangell up: %w", err)
	}
	i.ended = make(chan struct{})
	go func() {
		i.endErr = i.cmd.Wait()
		close(i.ended)
	}()
	i.Control = httpapi.NewClient(instance.ControlSocket(i.runDir))
	if err := i.Until(ctx, i.Control.Ready); err != nil {
		return fmt.Errorf("wangell up is not ready: %w\n%s", err, &i.stderr)
	}
	var err error
	i.containerd, err = client.New(containerd.OwnSocket(i.runDir),
		client.WithDefaultNamespace(containerd.DefaultNamespace))
	if err != nil {
		return fmt.Errorf("connect to the instance's containerd: %w", err)
	}
	return nil
}

// PID returns the process ID of `wangell up`.
func (i *Instance) PID() int { return i.cmd.Process.Pid }

// Child returns the process ID of a program that `wangell up` has started, the one whose first argument is arg.
func (i *Instance) Child(arg string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		fields, err := process.Stat(pid)
		if err != nil || len(fields) <= process.StatParent || fields[process.StatParent] != strconv.Itoa(i.PID()) {
			continue
		}
		cmdline, err := os.ReadFile(file)
		if args := strings.Split(string(cmdline), "\x00"); err == nil && len(args) > 1 && args[1] == arg {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("wangell up, process %d, has no child %q", i.PID(), arg)
}

// Until repeats f every 10 ms until it succeeds. It fails after SettleTimeout, or when the instance ends.
func (i *Instance) Until(ctx context.Context, f func(context.Context) error) error {
	return i.within(ctx, SettleTimeout, f)
}

func (i *Instance) within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-i.ended:
			return fmt.Errorf("wangell up has ended: %w", errors.Join(i.endErr, err))
		}
	}
}

// Sleep puts a service to sleep. It returns once no service has a replica and containerd has no task.
func (i *Instance) Sleep(ctx context.Context, name string) error {
	if err := i.Control.Sleep(ctx, name); err != nil {
		return fmt.Errorf("sleep %s: %w", name, err)
	}
	return i.Until(ctx, func(ctx context.Context) error {
		services, err := i.Control.Status(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if status := s.Service.Status; status.Replicas != 0 || status.State != "Cold" {
				return fmt.Errorf("service %s/%s is %s with %d replicas after sleep",
					s.Service.Namespace, s.Service.Name, status.State, status.Replicas)
			}
		}
		list, err := i.containerd.TaskService().List(ctx, &tasks.ListTasksRequest{})
		if err == nil && len(list.Tasks) > 0 {
			err = fmt.Errorf("containerd still has %d tasks", len(list.Tasks))
		}
		return err
	})
}

// LastWake returns a service's last wake, or nil if there was none.
func (i *Instance) LastWake(ctx context.Context, name string) (*lifecycle.Waterfall, error) {
	wakes, err := i.Control.Wakes(ctx, name)
	if err != nil || len(wakes) == 0 {
		return nil, err
	}
	return &wakes[len(wakes)-1], nil
}

// Woken fails while the last wake of a service is under way. The client may get its answer before the instance learns
// that the pod listens; Sleep would cancel the wake.
func (i *Instance) Woken(ctx context.Context, name string) error {
	w, err := i.LastWake(ctx, name)
	if err == nil && (w == nil || w.Result == lifecycle.ResultRunning) {
		err = fmt.Errorf("the wake of %s has not ended although its client got an answer", name)
	}
	return err
}

// AwaitImage waits until the instance's containerd has an image and has unpacked it, for at most a time.
func (i *Instance) AwaitImage(ctx context.Context, ref string, atMost time.Duration) error {
	return i.within(ctx, atMost, func(ctx context.Context) error {
		img, err := i.containerd.GetImage(ctx, ref)
		if err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
		unpacked, err := img.IsUnpacked(ctx, "")
		if err == nil && !unpacked {
			err = fmt.Errorf("image %s is not unpacked yet", ref)
		}
		return err
	})
}

// Close ends the instance and removes everything that it made. It fails if something is left.
func (i *Instance) Close() error {
	var errs []error
	if i.containerd != nil {
		errs = append(errs, i.containerd.Close())
	}
	if i.Control != nil {
		i.Control.Close()
	}
	if i.cmd != nil && i.ended != nil {
		errs = append(errs, i.terminate())
	}
	ctx, cancel := context.WithTimeout(context.Background(), SettleTimeout)
	defer cancel()
	if _, err := os.Stat(i.runDir); err == nil { // up did not end cleanly
		errs = append(errs, i.run(ctx, "down", "--state-dir", i.stateDir))
	}
	errs = append(errs, i.Net.Close())
	wait, cancelWait := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancelWait()
	left, err := i.before.WaitSame(wait, i.scope)
	if len(left) > 0 {
		// There may be mounts below the folder: removing it could remove more than the folder.
		errs = append(errs, fmt.Errorf("the experiment left something behind, and the folder %s: %s",
			i.baseDir, strings.Join(left, "; ")))
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, err, os.RemoveAll(i.baseDir))...)
}

// terminate ends `wangell up` by SIGTERM.
func (i *Instance) terminate() error {
	_ = i.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-i.ended:
	case <-time.After(stopTimeout):
		_ = i.cmd.Process.Kill()
		<-i.ended
		return fmt.Errorf("wangell up did not end within %s after SIGTERM and was killed:\n%s", stopTimeout, &i.stderr)
	}
	if i.endErr != nil {
		return fmt.Errorf("wangell up: %w:\n%s", i.endErr, &i.stderr)
	}
	return nil
}

// PodCgroup returns the path of the cgroup of a pod, or of all pods if id is empty, below the root of each hierarchy.
func (i *Instance) PodCgroup(id string) string { return filepath.Join("/", cgroup(i.runDir), id) }
