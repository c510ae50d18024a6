// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/stargz-snapshotter/estargz"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/process"
)

// lazyPlugin is wangell-snapshotter as a plugin of the containerd in use.
type lazyPlugin struct {
	client *client.Client
	own    *ownSnapshotter // nil with a containerd of the machine
	log    *slog.Logger

	mu     sync.Mutex
	socket string // once it was used
	used   func() // called then
}

// ready returns nil once the plugin can be used, or the reason why it cannot.
func (l *lazyPlugin) ready(ctx context.Context) error {
	socket, err := l.find(ctx)
	if err != nil {
		return err
	}
	if l.own != nil {
		if err := l.own.start(ctx); err != nil {
			return err
		}
	}
	p, err := awaitServed(ctx, socket)
	if err != nil {
		return fmt.Errorf("%s does not answer (%w): systemctl status %s", snapshotterProgram, err, snapshotterProgram)
	}
	p.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == "" && l.used != nil {
		l.used()
	}
	l.socket = socket
	return nil
}

// onUse calls a function once, when the plugin is first used; at once if it was used already.
func (l *lazyPlugin) onUse(used func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used = used; l.socket != "" {
		used()
	}
}

// find returns the socket that containerd uses for the plugin.
func (l *lazyPlugin) find(ctx context.Context) (string, error) {
	if l.own != nil {
		return l.own.socket, nil
	}
	found, err := l.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+lazySnapshotter)
	if err != nil {
		return "", fmt.Errorf("ask containerd for its plugins: %w", native(err))
	}
	for _, p := range found.Plugins {
		if address := p.Exports["address"]; address != "" {
			return strings.TrimPrefix(address, "unix://"), nil
		}
	}
	return "", fmt.Errorf("containerd has no plugin %s: see docs/images/lazy.md, or run wangell doctor", lazySnapshotter)
}

// inUse returns the socket of the plugin if it was used; empty if not.
func (l *lazyPlugin) inUse() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket
}

// lazyPatience is how long the snapshotter is retried: it may just be restarting, and containerd reconnects to it
// within 3 s.
const lazyPatience = 5 * time.Second

// patiently retries f for lazyPatience.
func patiently(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, lazyPatience)
	defer cancel()
	return retry(ctx, f)
}

// awaitServed retries servedBy for lazyPatience.
func awaitServed(ctx context.Context, socket string) (*process.Process, error) {
	for deadline := time.Now().Add(lazyPatience); ; {
		p, err := servedBy(socket)
		if err == nil || time.Now().After(deadline) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryEvery):
		}
	}
}

// servedBy returns the process that listens at a socket.
func servedBy(socket string) (*process.Process, error) {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, err
	}
	return process.Open(int(cred.Pid))
}

// errPlain is the error of a lazy pull of an image without a layer in a lazy format.
var errPlain = errors.New("no layer is eStargz or zstd:chunked: " +
	"wangell image convert --compression estargz makes such images")

// lazyHandler adds the labels that the snapshotter needs to the layers of an image.
func lazyHandler(ref string) func(images.Handler) images.Handler {
	add := snapshotters.AppendInfoHandlerWrapper(ref)
	return func(h images.Handler) images.Handler {
		return add(images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			children, err := h.Handle(ctx, d)
			if err == nil && images.IsManifestType(d.MediaType) && !anyLazy(children) {
				err = errPlain
			}
			return children, err
		}))
	}
}

func anyLazy(layers []ocispec.Descriptor) bool {
	for _, d := range layers {
		if d.Annotations[estargz.TOCJSONDigestAnnotation] != "" {
			return true
		}
	}
	return false
}

// SharedLazyRoot is the folder of the snapshotter that a containerd of the machine uses.
const SharedLazyRoot = "/var/lib/wangell/lazy"

// lazySnapshotter is containerd's name for wangell-snapshotter, which mounts layers before they are complete.
const lazySnapshotter = "wangell-lazy"

// snapshotterProgram is the program behind lazySnapshotter.
const snapshotterProgram = "wangell-snapshotter"

// LazyRoot is the folder of an own snapshotter, in the state folder dir.
func LazyRoot(dir string) string { return filepath.Join(OwnRoot(dir), "lazy") }

// ownSnapshotter is the process of wangell-snapshotter that belongs to an own containerd.
type ownSnapshotter struct {
	// root is its folder, socket its socket, and pid and logs are its files.
	root, socket, pid, logs string
	// insecure are the registries that are used without TLS.
	insecure []string
	log      *slog.Logger

	mu      sync.Mutex
	running *lasting // nil until it is needed
}

// used reports whether this instance has ever had a snapshotter, and so may have its snapshots.
func (o *ownSnapshotter) used() bool {
	_, err := os.Stat(o.root)
	return err == nil
}

// start returns once the snapshotter answers. Like containerd it outlives this process, because running containers
// read their files through it, and is restarted whenever it exits.
func (o *ownSnapshotter) start(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running != nil {
		return nil
	}
	program, err := FindSnapshotter()
	if err != nil {
		return err
	}
	argv := []string{program, "--root", o.root, "--socket", o.socket}
	for _, r := range o.insecure {
		argv = append(argv, "--insecure-registry", r)
	}
	l := &lasting{
		name: snapshotterProgram, argv: argv, key: o.socket, pid: o.pid, logs: o.logs,
		effect: ", and so are the pods that used it", log: o.log,
		answers: func(ctx context.Context) error {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", o.socket)
			if err == nil {
				err = c.Close()
			}
			return err
		},
	}
	if err := l.begin(ctx); err != nil {
		return err
	}
	o.running = l
	return nil
}

// release ends the supervision and leaves the snapshotter running.
func (o *ownSnapshotter) release() {
	if l := o.take(); l != nil {
		l.release()
	}
}

// end stops the snapshotter and removes its mounts, which a killed one leaves behind.
func (o *ownSnapshotter) end() error {
	l := o.take()
	if l == nil {
		return nil
	}
	return errors.Join(l.end(), UnmountBelow(o.root))
}

// take returns the snapshotter, which the caller then ends; nil if there is none.
func (o *ownSnapshotter) take() *lasting {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.running
	o.running = nil
	return l
}

// FindSnapshotter returns the path of wangell-snapshotter, which is beside this program or in $PATH.
func FindSnapshotter() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), snapshotterProgram)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(snapshotterProgram)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in $PATH: install it", snapshotterProgram)
	}
	return path, nil
}
