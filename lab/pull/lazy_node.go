// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/opencontainers/image-spec/identity"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// lazyPlugin is containerd's name for the snapshotter, and full its built-in one.
	lazyPlugin = "wangell-lazy"
	full       = "overlayfs"
	// snapshotterIn bounds the start of the snapshotter and its end.
	snapshotterIn = 30 * time.Second
)

// lazyNode is a machine without images: a containerd, and a snapshotter for lazy pulls.
type lazyNode struct {
	dir        string
	snapshots  *process.Process // nil: none
	containerd *live.Containerd
	client     *client.Client
	http       http.Client
}

// newLazyNode starts one in a network.
func (b *bench) newLazyNode(ctx context.Context, network *netlab.Net, h *hub, s lazySetting) (_ *lazyNode, err error) {
	n := &lazyNode{}
	if n.dir, err = os.MkdirTemp(b.dir, "lazy-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	socket := filepath.Join(n.dir, "s.sock")
	argv := []string{b.p.Snapshotter, "--root", n.root(), "--socket", socket, "--hosts-dir", "",
		"--insecure-registry", h.Host}
	if s != (lazySetting{}) {
		argv = append(argv, "--workers", strconv.Itoa(s.workers), "--piece", strconv.FormatInt(s.piece, 10))
	}
	log, err := os.Create(filepath.Join(n.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := network.Node.Command(context.Background(), argv...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program
	if n.snapshots, err = process.StartBound(cmd); err != nil {
		return nil, fmt.Errorf("start wangell-snapshotter: %w", err)
	}
	if err := n.awaitSnapshotter(ctx, socket, log.Name()); err != nil {
		return nil, err
	}
	n.containerd, err = live.Start(ctx, live.Options{
		Program: b.p.Containerd, Dir: b.dir, Insecure: []string{h.Host}, Path: b.none, Namespace: network.Node.Path,
		Config: fmt.Sprintf("\n[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n", lazyPlugin, socket),
	})
	if err != nil {
		return nil, err
	}
	if n.client, err = client.New(n.containerd.Socket(), client.WithDefaultNamespace("lab")); err != nil {
		return nil, err
	}
	n.http.Transport = &http.Transport{DialContext: network.Node.Dialer().DialContext, MaxIdleConnsPerHost: 8}
	return n, nil
}

// root is the folder of the snapshotter.
func (n *lazyNode) root() string { return filepath.Join(n.dir, "root") }

// awaitSnapshotter returns once the snapshotter answers.
func (n *lazyNode) awaitSnapshotter(ctx context.Context, socket, log string) error {
	for deadline := time.Now().Add(snapshotterIn); ; {
		_, err := os.Stat(socket)
		if err == nil {
			return nil
		}
		select {
		case <-n.snapshots.Ended():
			return fmt.Errorf("wangell-snapshotter has ended: %s", containerd.LastLine(log, 0))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wangell-snapshotter does not answer within %s", snapshotterIn)
		}
	}
}

// pull pulls an image as wangell up does.
func (n *lazyNode) pull(ctx context.Context, ref, snapshotter string) (client.Image, error) {
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithClient(&n.http), docker.WithPlainHTTP(docker.MatchAllHosts))})
	options := []client.RemoteOpt{client.WithPullUnpack, client.WithPullSnapshotter(snapshotter),
		client.WithResolver(resolver)}
	if snapshotter == lazyPlugin {
		options = append(options, client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(ref)))
	}
	return n.client.Pull(ctx, ref, options...)
}

// run runs a program with an image as its root, and returns once it has ended.
func (n *lazyNode) run(ctx context.Context, img client.Image, snapshotter string, argv []string) (err error) {
	ids, err := img.RootFS(ctx)
	if err != nil {
		return err
	}
	ctx, done, err := n.client.WithLease(ctx, leases.WithRandomID())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
	key := fmt.Sprintf("run-%d", time.Now().UnixNano())
	mounts, err := n.client.SnapshotService(snapshotter).Prepare(ctx, key, identity.ChainID(ids).String())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(n.dir, "mnt-")
	if err != nil {
		return err
	}
	if err := mount.All(mounts, dir); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, mount.UnmountAll(dir, 0), os.Remove(dir),
			n.client.SnapshotService(snapshotter).Remove(context.WithoutCancel(ctx), key))
	}()
	// Another program changes the root: between fork and exec this one must not wait for a file.
	cmd := execIn(ctx, dir, argv)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) == 0 {
		return fmt.Errorf("%.60q: %w: %.2000s", argv, err, out)
	}
	return nil
}

// stopSnapshotter ends the snapshotter, which then writes its recordings. A second call does nothing.
func (n *lazyNode) stopSnapshotter() error {
	if n.snapshots == nil {
		return nil
	}
	p := n.snapshots
	n.snapshots = nil
	return p.Stop(snapshotterIn)
}

// close ends it and removes its folder.
func (n *lazyNode) close() error {
	n.http.CloseIdleConnections()
	var errs []error
	if n.client != nil {
		errs = append(errs, n.client.Close())
	}
	if n.containerd != nil {
		errs = append(errs, n.containerd.Close())
	}
	errs = append(errs, n.stopSnapshotter())
	if err := errors.Join(append(errs, containerd.UnmountBelow(n.dir), os.RemoveAll(n.dir))...); err != nil {
		return fmt.Errorf("clean up %s: %w", n.dir, err)
	}
	return nil
}

// execIn returns a command that runs with a folder as its root.
func execIn(ctx context.Context, dir string, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "chroot", append([]string{dir}, argv...)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/"}
	return cmd
}
