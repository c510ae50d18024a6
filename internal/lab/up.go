// SPDX-License-Identifier: Apache-2.0

package lab

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
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/instance"
	"wangell.loutres.me/internal/localapi"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/testutil/netlab"
)

// Ranges of the experiments, apart from the link's (netlab.DefaultLink).
var (
	podAddresses   = netip.MustParsePrefix("10.46.128.0/20")
	floorAddresses = netip.MustParsePrefix("10.46.144.0/20")
)

// up is an instance of Wangell on the node of a network, with a containerd of its own.
type up struct {
	services       netip.Prefix // the range of service addresses
	wangell        string
	net            *netlab.Net
	stateDir       string
	runDir         string
	control        *localapi.Client
	containerd     *client.Client
	cmd            *exec.Cmd
	ended          chan struct{} // closed when cmd has ended, with endErr
	endErr         error
	stdout, stderr tail
	baseDir        string
	floorRun       string
	scope          netlab.Scope
	before         netlab.Snapshot
}

// newUp makes the network and the folders of an instance whose service addresses are from services. The caller ends
// it with close, also after other methods failed.
func newUp(wangell string, services netip.Prefix) (_ *up, err error) {
	u := &up{wangell: wangell, services: services}
	if u.baseDir, err = os.MkdirTemp("", "wangell-lab-"); err != nil {
		return nil, err
	}
	u.stateDir, u.runDir, u.floorRun = filepath.Join(u.baseDir, "state"), filepath.Join(u.baseDir, "run"), filepath.Join(u.baseDir, "floor-run")
	u.scope = netlab.Scope{Paths: []string{u.baseDir}, Cgroups: []string{cgroup(u.runDir), cgroup(u.floorRun)}}
	if u.before, err = netlab.TakeSnapshot(u.scope); err == nil {
		u.net, err = netlab.New(netlab.Config{Services: services})
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(u.baseDir))
	}
	return u, nil
}

// cgroup is what the cgroups of the runtime with this run folder have in their paths, see containerd.Config.Instance.
func cgroup(runDir string) string {
	sum := sha256.Sum256([]byte(runDir))
	return "wangell-" + hex.EncodeToString(sum[:4])
}

// load brings an image into the instance's containerd: that of a tarball, or, if file is empty, the hello image.
func (u *up) load(ctx context.Context, file string) error {
	if file == "" {
		img, err := image.Hello(ctx)
		if err != nil {
			return err
		}
		file = filepath.Join(u.baseDir, "image.tar")
		if err := image.WriteFile(file, image.HelloTag, img); err != nil {
			return err
		}
	}
	return u.run(ctx, "image", "load", file, "--state-dir", u.stateDir, "--containerd", "own")
}

// run runs a command of wangell for this instance.
func (u *up) run(ctx context.Context, args ...string) error {
	cmd := u.net.Node.Command(ctx, append(append([]string{u.wangell}, args...), "--run-dir", u.runDir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("wangell %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// start runs `wangell up` with a manifest and returns when it can wake services.
func (u *up) start(ctx context.Context, manifest []byte) error {
	file := filepath.Join(u.baseDir, "services.yaml")
	if err := os.WriteFile(file, manifest, 0o644); err != nil {
		return err
	}
	// Its end is by SIGTERM, so that it cleans up, not by the context.
	u.cmd = u.net.Node.Command(context.Background(), u.wangell, "up", "-f", file, "--state-dir", u.stateDir, "--run-dir", u.runDir,
		"--containerd", "own", "--interface", netlab.Device, "--addresses", u.services.String(),
		"--pod-addresses", podAddresses.String(), "--metrics-address", "", "-o", "json")
	u.cmd.Stdout, u.cmd.Stderr = &u.stdout, &u.stderr
	if err := u.cmd.Start(); err != nil {
		return fmt.Errorf("wangell up: %w", err)
	}
	u.ended = make(chan struct{})
	go func() {
		u.endErr = u.cmd.Wait()
		close(u.ended)
	}()
	u.control = localapi.NewClient(instance.ControlSocket(u.runDir))
	if err := u.until(ctx, u.control.Ready); err != nil {
		return fmt.Errorf("wangell up is not ready: %w\n%s", err, &u.stderr)
	}
	var err error
	u.containerd, err = client.New(containerd.OwnSocket(u.runDir), client.WithDefaultNamespace(containerd.DefaultNamespace))
	if err != nil {
		return fmt.Errorf("connect to the instance's containerd: %w", err)
	}
	return nil
}

// settleTimeout is how long until waits.
const settleTimeout = time.Minute

// until calls f, again a little later whenever it fails, until it does not. It fails when up ends.
func (u *up) until(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
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
		case <-u.ended:
			return fmt.Errorf("wangell up has ended: %w", errors.Join(u.endErr, err))
		}
	}
}

// sleep puts a service to sleep and makes sure that it is at zero: no replica, and no task at all in containerd.
func (u *up) sleep(ctx context.Context, name string) error {
	if err := u.control.Sleep(ctx, name); err != nil {
		return fmt.Errorf("sleep %s: %w", name, err)
	}
	return u.until(ctx, func(ctx context.Context) error {
		services, err := u.control.Status(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.Service.Status.Replicas != 0 || s.Service.Status.State != "Cold" {
				return fmt.Errorf("service %s/%s is %s and has %d replicas after sleep", s.Service.Namespace, s.Service.Name, s.Service.Status.State, s.Service.Status.Replicas)
			}
		}
		list, err := u.containerd.TaskService().List(ctx, &tasks.ListTasksRequest{})
		if err == nil && len(list.Tasks) > 0 {
			err = fmt.Errorf("containerd still has %d tasks", len(list.Tasks))
		}
		return err
	})
}

// address returns the address and port of the only service.
func (u *up) address(ctx context.Context) (netip.AddrPort, error) {
	services, err := u.control.Status(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(services) != 1 {
		return netip.AddrPort{}, fmt.Errorf("the instance has %d services, want 1", len(services))
	}
	addr, err := netip.ParseAddr(services[0].Service.Status.LoadBalancerIP)
	return netip.AddrPortFrom(addr, uint16(services[0].Service.Spec.Port)), err
}

// close ends the instance, removes all that it made, and fails if anything is left.
func (u *up) close() error {
	var errs []error
	if u.containerd != nil {
		errs = append(errs, u.containerd.Close())
	}
	if u.control != nil {
		u.control.Close()
	}
	if u.cmd != nil && u.ended != nil {
		errs = append(errs, u.terminate())
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if _, err := os.Stat(u.runDir); err == nil { // up did not end well
		errs = append(errs, u.run(ctx, "down", "--state-dir", u.stateDir))
	}
	errs = append(errs, u.net.Close())
	wait, cancelWait := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancelWait()
	left, err := u.before.WaitSame(wait, u.scope)
	if len(left) > 0 {
		// With mounts below it, removing the folder could remove more than the folder.
		return errors.Join(append(errs, fmt.Errorf("the experiment left something behind, and %s: %s", u.baseDir, strings.Join(left, "; ")))...)
	}
	return errors.Join(append(errs, err, os.RemoveAll(u.baseDir))...)
}

// terminate ends up by SIGTERM.
func (u *up) terminate() error {
	_ = u.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-u.ended:
	case <-time.After(settleTimeout):
		_ = u.cmd.Process.Kill()
		<-u.ended
		return fmt.Errorf("wangell up did not end within %s after SIGTERM and was killed:\n%s", settleTimeout, &u.stderr)
	}
	if u.endErr != nil {
		return fmt.Errorf("wangell up: %w:\n%s", u.endErr, &u.stderr)
	}
	return nil
}

// floor starts a floor process beside the instance: the same containerd and image, but folders and addresses of its
// own. The caller stops it.
func (u *up) floor(cfg ColdConfig) (*floorProcess, error) {
	return startFloor(u.net.Node, cfg.floor, FloorConfig{Socket: containerd.OwnSocket(u.runDir), StateDir: u.baseDir + "/floor-state",
		RunDir: u.floorRun, PodAddresses: floorAddresses, Service: cfg.service()})
}
