// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/base/atomicfile"
)

// tarSink is a tarball: an OCI layout, which is also in the format of docker save if it holds a single image.
type tarSink struct {
	file string
	tag  string // of the image; may be empty
	work *work

	mu    sync.Mutex
	blobs map[digest.Digest]ocispec.Descriptor
}

func openTarball(file, tag string, w *work) (*tarSink, error) {
	if tag != "" {
		ref, err := name.NewTag(tag)
		if err != nil {
			return nil, fmt.Errorf("image name %q: %w", tag, err)
		}
		tag = ref.Name()
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil {
		return nil, fmt.Errorf("tarball %s: %w", file, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("tarball %s: %s is not a folder", file, filepath.Dir(file))
	}
	return &tarSink{file: file, tag: tag, work: w, blobs: map[digest.Digest]ocispec.Descriptor{}}, nil
}

func (*tarSink) writable(context.Context) error { return nil }

func (s *tarSink) has(_ context.Context, d ocispec.Descriptor) (bool, error) {
	if !s.work.hasBlob(d.Digest, d.Size) {
		return false, nil
	}
	s.list(d)
	return true, nil
}

func (s *tarSink) list(d ocispec.Descriptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[d.Digest] = d
}

func (s *tarSink) put(_ context.Context, d ocispec.Descriptor) error {
	s.list(d)
	return nil
}

func (s *tarSink) copy(ctx context.Context, from *source, d ocispec.Descriptor) error {
	if err := download(ctx, from, d, s.work.path(workSpool), s.work.blob(d.Digest)); err != nil {
		return err
	}
	return s.put(ctx, d)
}

// download writes a blob of the source to a file, which does not exist before it is whole.
func download(ctx context.Context, from *source, d ocispec.Descriptor, spool, file string) error {
	in, err := from.open(ctx, d)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(spool, "download-")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		_ = os.Remove(out.Name())
	}
	return err
}

func (s *tarSink) manifest(_ context.Context, d ocispec.Descriptor, text []byte) error {
	s.list(d)
	return os.WriteFile(s.work.blob(d.Digest), text, 0o600)
}

func (s *tarSink) open(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return os.Open(s.work.blob(d.Digest))
}

func (s *tarSink) publish(ctx context.Context, d ocispec.Descriptor, text []byte) (err error) {
	if err := s.manifest(ctx, d, text); err != nil {
		return err
	}
	small, err := s.documents(d, text)
	if err != nil {
		return err
	}
	err = atomicfile.Into(s.file, 0o644, func(w io.Writer) error { return s.write(ctx, w, small) })
	if err != nil {
		return fmt.Errorf("write tarball %s: %w", s.file, err)
	}
	for _, b := range s.blobs {
		if err := s.work.forget(b.Digest); err != nil {
			return err
		}
	}
	return nil
}

// documents returns the files that describe the tarball.
func (s *tarSink) documents(d ocispec.Descriptor, text []byte) (map[string][]byte, error) {
	if s.tag != "" {
		tag, err := name.NewTag(s.tag)
		if err != nil {
			return nil, err
		}
		d.Annotations = map[string]string{
			ocispec.AnnotationRefName: tag.TagStr(), "io.containerd.image.name": tag.Name(),
		}
	}
	files := map[string]any{
		ocispec.ImageLayoutFile: ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion},
		ocispec.ImageIndexFile: ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
			Manifests: []ocispec.Descriptor{d},
		},
	}
	if !isIndex(d.MediaType) {
		var m ocispec.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return nil, err
		}
		saved := struct {
			Config   string
			RepoTags []string
			Layers   []string
		}{Config: blobName(m.Config.Digest)}
		if s.tag != "" {
			saved.RepoTags = []string{s.tag}
		}
		for _, l := range m.Layers {
			saved.Layers = append(saved.Layers, blobName(l.Digest))
		}
		files["manifest.json"] = []any{saved}
	}
	small := map[string][]byte{}
	for name, v := range files {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		small[name] = text
	}
	return small, nil
}

func blobName(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// write writes the tarball, sorted and with constant times.
func (s *tarSink) write(ctx context.Context, out io.Writer, small map[string][]byte) error {
	w := tar.NewWriter(out)
	add := func(name string, size int64, content io.Reader) error {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(small)) {
		if err := add(name, int64(len(small[name])), bytes.NewReader(small[name])); err != nil {
			return err
		}
	}
	for _, b := range slices.SortedFunc(maps.Values(s.blobs), func(a, b ocispec.Descriptor) int {
		return cmp.Compare(a.Digest, b.Digest)
	}) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f, err := os.Open(s.work.blob(b.Digest))
		if err != nil {
			return err
		}
		err = add(blobName(b.Digest), b.Size, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return w.Close()
}
