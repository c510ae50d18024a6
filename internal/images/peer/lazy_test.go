// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/image-spec/identity"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/images/lazy"
	"wangell.loutres.me/internal/images/lazy/packed"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
	"wangell.loutres.me/test/testutil/need"
)

const lazyPlugin = "wangell-lazy"

// lazyNode is a node with a snapshotter, whose containerd and mirror are real, too.
type lazyNode struct {
	*node
	containerd *containerdtest.Containerd
	snapshots  *lazy.Server
	root       string
	wanted     []wire.WantedImage
}

func (f *fabric) addLazy(name string, settle time.Duration) *lazyNode {
	f.t.Helper()
	need.FUSE(f.t)
	dir, err := os.MkdirTemp("", "lz")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { os.RemoveAll(dir) })
	n := &lazyNode{root: filepath.Join(dir, "root")}
	socket := filepath.Join(dir, "s.sock")
	n.snapshots, err = lazy.Start(f.t.Context(), lazy.Config{
		Root: n.root, Socket: socket, Settle: settle, Patience: time.Minute,
		Hosts: func(host string) ([]docker.RegistryHost, error) { return n.hosts(host) },
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := n.snapshots.Close(); err != nil {
			f.t.Error(err)
		}
	})
	n.containerd = containerdtest.StartWith(f.t, 0, fmt.Sprintf(
		"[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n", lazyPlugin, socket))
	n.node = f.addTo(n.containerd, name, func(c *Config) {
		c.Layers, c.askTimeout = packed.Dir(n.root), time.Minute // the index answers, however slow the machine is
	})
	return n
}

// hosts are the registries as containerd's settings say, with the mirror before them.
func (n *lazyNode) hosts(host string) ([]docker.RegistryHost, error) {
	options := config.HostOptions{HostDir: config.HostDirFromRoot(n.containerd.Hosts)}
	return config.ConfigureHosts(context.Background(), options)(host)
}

// mount pulls an image lazily, and returns where it is mounted.
func (n *lazyNode) mount(t *testing.T, ref string) (dir string) {
	t.Helper()
	n.wanted = append(n.wanted, wire.WantedImage{Ref: ref, Policy: wire.ImageIfNotPresent})
	n.mirror.Want(n.wanted)
	img, err := n.containerd.Client.Pull(t.Context(), ref, client.WithPullUnpack, client.WithPullSnapshotter(lazyPlugin),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(ref)),
		client.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: n.hosts})))
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.reports = append(n.reports, wire.ImageReport{
		Ref: ref, State: wire.ImagePresent, Digest: string(img.Target().Digest),
	})
	n.mu.Unlock()
	n.mirror.Scan()
	ids, err := img.RootFS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cleaning := context.WithoutCancel(t.Context())
	ctx, done, err := n.containerd.Client.WithLease(t.Context(), leases.WithRandomID())
	if err != nil {
		t.Fatal(err)
	}
	store, key := n.containerd.Client.SnapshotService(lazyPlugin), fmt.Sprintf("test-%d", time.Now().UnixNano())
	list, err := store.View(ctx, key, identity.ChainID(ids).String())
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := mount.All(list, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(mount.UnmountAll(dir, 0), store.Remove(cleaning, key), done(cleaning)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// spoil changes a byte in the middle of each packed layer that the node has.
func (n *lazyNode) spoil(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir(packed.Dir(n.root))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range files {
		f, err := os.OpenFile(filepath.Join(packed.Dir(n.root), e.Name()), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil || st.Size() < 1<<20 { // its notes
			continue
		}
		one := make([]byte, 1)
		_, err = f.ReadAt(one, st.Size()/2)
		one[0] ^= 0xff
		if _, failed := f.WriteAt(one, st.Size()/2); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
}

// untilParts waits until the index has been told that a node's snapshotter has so many pieces of layers.
func (f *fabric) untilParts(n *lazyNode, pieces int) {
	f.t.Helper()
	containerdtest.Until(f.t, fmt.Sprintf("%d pieces are known", pieces), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		n.mirror.mu.Lock()
		defer n.mirror.mu.Unlock()
		told := 0
		for k := range n.mirror.lazy {
			question := blobindex.Report{Key: k, State: blobindex.Partial}
			a, _ := f.index.Report("nobody", question, time.Now(), func(int) int { return 0 })
			for _, h := range a.Holders {
				if h.Complete {
					told += swarm.Pieces(a.Size)
				} else {
					told += h.Have.Len()
				}
			}
		}
		return told >= pieces
	})
}

// pushLazy pushes an image in eStargz with a layer for each file, and returns its name by its digest.
func pushLazy(t *testing.T, hub *faultyhub.Hub, repository string, files ...map[string]image.File) string {
	t.Helper()
	var layers []v1.Layer
	for _, f := range files {
		img, err := image.Build(image.Spec{Files: f, Entrypoint: []string{"/none"}})
		if err != nil {
			t.Fatal(err)
		}
		more, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, more...)
	}
	plain, _ := hub.Push(t, repository+":plain", layers...)
	how, err := convert.ParseCompression("estargz")
	if err != nil {
		t.Fatal(err)
	}
	keep, err := convert.ParseLayers("keep")
	if err != nil {
		t.Fatal(err)
	}
	ref := hub.Host + "/" + repository + ":lazy"
	if _, err := convert.Run(t.Context(), convert.Options{Source: plain, Destination: ref, Layers: keep,
		Compression: how}); err != nil {
		t.Fatal(err)
	}
	return imageref.Fixed(ref, hub.Digest(t, ref))
}

func noise(n int) image.File {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return image.File{Data: data}
}

func checkFile(t *testing.T, file string, want image.File) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want.Data) {
		t.Errorf("%s: %d bytes, %v; want %d", file, len(got), err, len(want.Data))
	}
}

// A container that starts before its image is here reads what another node's snapshotter has got of it, also of layers
// that are not complete there, and without the registry. Wrong bytes are found out, and fetched from the registry.
func TestLazyReadsGetWhatOtherNodesHave(t *testing.T) {
	hub := faultyhub.New(t)
	f := newFabric(t)
	a, b := f.addLazy("a", time.Hour), f.addLazy("b", 0) // a fetches nothing but what is read

	t.Run("wrong bytes", func(t *testing.T) {
		file := noise(9 << 20)
		ref := pushLazy(t, hub, "team/wrong", map[string]image.File{"/file": file})
		checkFile(t, filepath.Join(a.mount(t, ref), "file"), file)
		containerdtest.Until(t, "the layer is complete", func() bool { return a.snapshots.Stats().Complete == 1 })
		a.spoil(t)
		f.untilParts(a, 3)
		checkFile(t, filepath.Join(b.mount(t, ref), "file"), file)
		containerdtest.Until(t, "the layer is complete", func() bool { return b.snapshots.Stats().Complete == 1 })
		if s := b.snapshots.Stats(); s.Distrusted == 0 || s.Sources["peer"] == 0 || s.Failures > 0 {
			t.Errorf("%+v", s)
		}
	})

	t.Run("parts", func(t *testing.T) {
		read := noise(8<<20 - 100<<10) // nearly two pieces
		ref := pushLazy(t, hub, "team/parts", map[string]image.File{"/a": read, "/b": noise(4<<20 + 100<<10)},
			map[string]image.File{"/unread": noise(8 << 20)})
		before := b.snapshots.Stats()
		checkFile(t, filepath.Join(a.mount(t, ref), "a"), read)
		f.untilParts(a, 3+3+1) // three of the first layer, and the end of the second
		hub.Close()
		dir := b.mount(t, ref)
		checkFile(t, filepath.Join(dir, "a"), read)
		if _, err := os.Stat(filepath.Join(dir, "unread")); err != nil {
			t.Error(err) // its layer's table of contents is there
		}
		s := b.snapshots.Stats()
		peer, registry := s.Sources["peer"]-before.Sources["peer"], s.Sources["registry"]-before.Sources["registry"]
		if peer < int64(len(read.Data)) || registry != 0 {
			t.Errorf("%d bytes came from the peer, %d from the registry", peer, registry)
		}
	})
}
