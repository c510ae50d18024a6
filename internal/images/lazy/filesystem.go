// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/fs/layer"
	"github.com/containerd/stargz-snapshotter/fs/remote"
	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/containerd/stargz-snapshotter/metadata/memory"
	"github.com/containerd/stargz-snapshotter/task"
	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/lazy/trace"
)

// Labels of snapshots, by which a pull describes the layer. The CRI plugin sets them if its
// disable_snapshot_annotations is false; other clients set them with WithLabels.
const (
	labelRef    = snapshotters.TargetRefLabel
	labelLayer  = snapshotters.TargetLayerDigestLabel
	labelDigest = "containerd.io/snapshot/remote/stargz.digest"
	labelName   = "containerd.io/snapshot/remote/stargz.reference"
)

// attributesFor is how long the kernel may keep names, also those that do not exist, and attributes: they never change.
const attributesFor = time.Hour

// filesystem mounts layers by FUSE. It implements FileSystem of stargz-snapshotter, whose packages parse the formats;
// the bytes come from a Store.
type filesystem struct {
	store  *Store
	hosts  docker.RegistryHosts
	broken brokenHosts
	dir    string // of caches
	mounts struct {
		sync.Mutex
		by   map[string]*mounted // by mount point
		keep bool                // files of blobs, after the last mount
	}
}

// mounted is a layer that is mounted.
type mounted struct {
	layer  layer.Layer
	blob   *Blob
	server *fuse.Server
}

// newFilesystem returns a filesystem whose caches are in a folder, which is emptied first.
func newFilesystem(dir string, s *Store, hosts docker.RegistryHosts) (*filesystem, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	f := &filesystem{store: s, hosts: hosts, dir: dir}
	f.mounts.by = map[string]*mounted{}
	return f, nil
}

// resolve reads the table of contents of a blob. Each blob has a resolver of its own, whose layer reads the blob
// itself: the packages' own cache of packed bytes would be a second copy.
func (f *filesystem) resolve(ctx context.Context, b *Blob, labels map[string]string) (layer.Layer, error) {
	r, err := f.resolverOf(b)
	if err != nil {
		return nil, err
	}
	desc := ocispec.Descriptor{Digest: b.source.digest, Size: b.size, Annotations: labels}
	return r.Resolve(ctx, noHosts, b.source.ref, desc)
}

func (f *filesystem) resolverOf(b *Blob) (_ *layer.Resolver, err error) {
	f.mounts.Lock()
	defer f.mounts.Unlock()
	if b.resolver != nil {
		return b.resolver, nil
	}
	// Background work of stargz-snapshotter is off: any read would stop it for seconds, so that a program that reads
	// all the time would never get ahead. Unpacked files are kept on disk and not also in memory.
	cfg := config.Config{NoPrefetch: true, NoBackgroundFetch: true, NoPrometheus: true,
		DirectoryCacheConfig: config.DirectoryCacheConfig{Direct: true}}
	open := func(_ *io.SectionReader, options ...metadata.Option) (metadata.Reader, error) {
		var r metadata.Reader
		err := b.retried(func() (err error) {
			packed, fast, err := faster(watchedReads{b}, b.size)
			if err != nil {
				return err
			}
			r, err = memory.NewReader(packed, append(options, fast)...)
			return err
		})
		if err == nil {
			err = checkNames(r)
		}
		if err != nil {
			return nil, err
		}
		b.recorder.names(r)
		return direct{r, b}, nil
	}
	b.resolver, err = layer.NewResolver(f.dir, task.NewBackgroundTaskManager(1, 0), cfg,
		map[string]remote.Handler{"store": f}, open, layer.OverlayOpaqueTrusted, nil)
	return b.resolver, err
}

// Mount mounts the layer that labels describe. An error makes containerd pull it as usual.
func (f *filesystem) Mount(ctx context.Context, mountpoint string, labels map[string]string) (err error) {
	toc, err := digest.Parse(labels[estargz.TOCJSONDigestAnnotation])
	if err != nil {
		return errors.New("the layer is neither eStargz nor zstd:chunked: it has no table of contents")
	}
	from, err := f.source(labels)
	if err != nil {
		return err
	}
	f.ahead(from, labels[snapshotters.TargetImageLayersLabel])
	blob, err := f.store.open(ctx, from, from.ref.String())
	if err != nil {
		return fmt.Errorf("image %s: layer %s: %w", from.ref, from.digest, err)
	}
	m := &mounted{blob: blob}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("image %s: layer %s: %w", from.ref, from.digest, err), f.end(m))
		}
	}()
	if err := blob.retried(func() error { return f.readTable(ctx, m, labels, toc) }); err != nil {
		return err
	}
	root, err := m.layer.RootNode(0)
	if err != nil {
		return err
	}
	timeout := attributesFor
	m.server, err = fuse.NewServer(
		readOnly{fusefs.NewNodeFS(root, &fusefs.Options{
			AttrTimeout: &timeout, EntryTimeout: &timeout, NegativeTimeout: &timeout, NullPermissions: true,
		})},
		mountpoint, &fuse.MountOptions{AllowOther: true, FsName: fsName, Name: fsName, DirectMountStrict: true,
			MaxWrite: readSize})
	if err != nil {
		return fmt.Errorf("mount by FUSE: %w", err)
	}
	go m.server.Serve()
	if err := m.server.WaitMount(); err != nil {
		return errors.Join(err, detach(mountpoint))
	}
	readAhead(mountpoint)
	f.store.first(blob, labels[trace.Annotation])
	blob.recorder.begin(from.ref.String())
	f.store.whenComplete(blob, func() {
		if err := m.layer.BackgroundFetch(); err != nil {
			f.store.log.Debug("a layer is not unpacked ahead of reads", "layer", from.digest, "error", err)
		}
	})
	f.mounts.Lock()
	defer f.mounts.Unlock()
	f.mounts.by[mountpoint] = m
	return nil
}

// readTable reads the table of contents of a layer, and verifies its digest.
func (f *filesystem) readTable(ctx context.Context, m *mounted, labels map[string]string, toc digest.Digest) error {
	l, err := f.resolve(ctx, m.blob, labels)
	if err != nil {
		return err
	}
	if err := l.Verify(toc); err != nil {
		f.mounts.Lock()
		m.blob.resolver = nil // which keeps it
		f.mounts.Unlock()
		return errors.Join(err, l.Close())
	}
	m.layer = l
	return nil
}

// readSize is the kernel's read-ahead for files that are read sequentially, in bytes.
const readSize = 1 << 20

// readAhead sets a mount's read-ahead to readSize. The default of 128 KiB costs more requests.
func readAhead(mountpoint string) {
	var st unix.Stat_t
	if err := unix.Stat(mountpoint, &st); err != nil {
		return
	}
	file := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	_ = os.WriteFile(file, []byte(strconv.Itoa(readSize>>10)), 0) // only slower where /sys cannot be written
}

// aheadFor is how long a layer that was opened ahead of its mount is kept open.
const aheadFor = 30 * time.Second

// ahead reads the tables of contents of the layers that will be mounted next, all at once: containerd mounts the
// layers of an image one after the other, and each would take round trips to the registry. They are the layers after
// that of a source in a comma-separated list of digests.
func (f *filesystem) ahead(from source, list string) {
	for text := range strings.SplitSeq(list, ",") {
		d, err := digest.Parse(text)
		if err != nil || d == from.digest {
			continue
		}
		next := from
		next.digest = d
		f.store.ahead(next, next.ref.String(), aheadFor, func(ctx context.Context, b *Blob) func(mounted bool) {
			l, err := f.resolve(ctx, b, nil)
			return func(mounted bool) {
				switch {
				case err != nil: // its mount will report the reason
				case mounted:
					l.Done()
				default:
					_ = l.Close()
				}
			}
		})
	}
}

// fsName is what mounts are called in /proc/mounts.
const fsName = "wangell-lazy"

// source returns where the layer with these labels comes from.
func (f *filesystem) source(labels map[string]string) (source, error) {
	name, text := labels[labelRef], labels[labelLayer]
	if name == "" {
		name, text = labels[labelName], labels[labelDigest]
	}
	ref, err := reference.Parse(name)
	if err != nil {
		return source{}, fmt.Errorf("the pull does not say which image it is (disable_snapshot_annotations?): %w", err)
	}
	d, err := digest.Parse(text)
	if err != nil {
		return source{}, fmt.Errorf("the pull does not say which layer it is: %w", err)
	}
	return source{hosts: f.hosts, broken: &f.broken, ref: ref, digest: d}, nil
}

// Check returns an error if the layer is not mounted. It does not ask the registry: a missing part fails when it is
// read.
func (f *filesystem) Check(_ context.Context, mountpoint string, _ map[string]string) error {
	f.mounts.Lock()
	defer f.mounts.Unlock()
	if f.mounts.by[mountpoint] == nil {
		return fmt.Errorf("%s is not mounted", mountpoint)
	}
	return nil
}

// Unmount unmounts a layer.
func (f *filesystem) Unmount(_ context.Context, mountpoint string) error {
	f.mounts.Lock()
	m := f.mounts.by[mountpoint]
	delete(f.mounts.by, mountpoint)
	f.mounts.Unlock()
	if m == nil {
		return fmt.Errorf("%s is not mounted", mountpoint)
	}
	return errors.Join(detach(mountpoint), f.end(m))
}

// end releases what a mount needed.
func (f *filesystem) end(m *mounted) error {
	f.mounts.Lock()
	keep := f.mounts.keep
	f.mounts.Unlock()
	var err error
	if m.layer != nil {
		err = m.layer.Close()
	}
	return errors.Join(err, f.store.release(m.blob, keep))
}

// leave makes Close keep the files of blobs, for the next Server.
func (f *filesystem) leave() {
	f.mounts.Lock()
	defer f.mounts.Unlock()
	f.mounts.keep = true
}

// detach unmounts without waiting for users of the mount.
func detach(mountpoint string) error {
	if err := unix.Unmount(mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", mountpoint, err)
	}
	return nil
}

// detachAll unmounts what is mounted in a folder.
func detachAll(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for line := range bytes.Lines(text) {
		if field := bytes.Fields(line); len(field) > 4 {
			if rel, err := filepath.Rel(dir, string(field[4])); err == nil && filepath.IsLocal(rel) {
				errs = append(errs, detach(string(field[4])))
			}
		}
	}
	return errors.Join(errs...)
}

// noHosts keeps stargz-snapshotter from asking registries itself.
func noHosts(reference.Spec) ([]docker.RegistryHost, error) { return nil, nil }
