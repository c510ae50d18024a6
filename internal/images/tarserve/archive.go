// SPDX-License-Identifier: Apache-2.0

package tarserve

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// annotationContainerdName is the annotation with the name of an image in a layout, as containerd writes it.
const annotationContainerdName = "io.containerd.image.name"

// archive is a tarball with an image. Blobs are read from the tarball on demand.
type archive struct {
	file    *os.File
	members map[string]*io.SectionReader // by name
	links   map[string]string            // symbolic links among the members
	blobs   map[digest.Digest]*io.SectionReader
	top     []byte // the manifest or index of the image
	name    string // of the image; may be empty
}

// openArchive reads the table of contents of a tarball.
func openArchive(name string) (_ *archive, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	a := &archive{
		file: f, members: map[string]*io.SectionReader{}, links: map[string]string{},
		blobs: map[digest.Digest]*io.SectionReader{},
	}
	if err := a.list(); err != nil {
		return nil, err
	}
	switch {
	case a.members[ocispec.ImageIndexFile] != nil:
		return a, a.readLayout()
	case a.members["manifest.json"] != nil:
		return a, a.readSaved()
	}
	return nil, errors.New("holds no image: want an OCI layout (index.json) or the format of docker save (manifest.json)")
}

func (a *archive) list() error {
	if kind := compressionOf(io.NewSectionReader(a.file, 0, 512)); kind != "" {
		return fmt.Errorf("is compressed as a whole (%s): decompress it first", kind)
	}
	in := tar.NewReader(a.file)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("is not a tarball: %w", err)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := a.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.members[name] = io.NewSectionReader(a.file, at, h.Size)
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		}
	}
}

// member returns a member by name, also through a symbolic link, as docker save once wrote for equal layers.
func (a *archive) member(name string) (*io.SectionReader, error) {
	name = path.Clean(name)
	if to, ok := a.links[name]; ok {
		name = to
	}
	if m := a.members[name]; m != nil {
		return io.NewSectionReader(m, 0, m.Size()), nil
	}
	return nil, fmt.Errorf("lacks %s: the tarball is not complete", name)
}

func (a *archive) readJSON(name string, into any) error {
	m, err := a.member(name)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(m).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readLayout reads an OCI image layout (OCI image-spec, "Image Layout").
func (a *archive) readLayout() error {
	var index ocispec.Index
	if err := a.readJSON(ocispec.ImageIndexFile, &index); err != nil {
		return err
	}
	if len(index.Manifests) != 1 {
		return fmt.Errorf("holds %d images: want one", len(index.Manifests))
	}
	for name, m := range a.members {
		if dir, hex := path.Split(name); path.Dir(path.Clean(dir)) == ocispec.ImageBlobsDir {
			a.blobs[digest.NewDigestFromEncoded(digest.Algorithm(path.Base(dir)), hex)] = m
		}
	}
	top := index.Manifests[0]
	m := a.blobs[top.Digest]
	if m == nil {
		return fmt.Errorf("lacks the blob %s: the tarball is not complete", top.Digest)
	}
	var err error
	a.top, err = io.ReadAll(io.NewSectionReader(m, 0, m.Size()))
	a.name = top.Annotations[annotationContainerdName]
	return err
}

// readSaved reads the format of docker save, for which it makes a manifest. Layers stay as they are.
func (a *archive) readSaved() error {
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := a.readJSON("manifest.json", &saved); err != nil {
		return err
	}
	if len(saved) != 1 {
		return fmt.Errorf("holds %d images: want one", len(saved))
	}
	config, err := a.add(saved[0].Config)
	if err != nil {
		return err
	}
	config.MediaType = ocispec.MediaTypeImageConfig
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
	}
	for _, name := range saved[0].Layers {
		layer, err := a.add(name)
		if err != nil {
			return err
		}
		layer.MediaType = ocispec.MediaTypeImageLayer
		if kind := compressionOf(a.blobs[layer.Digest]); kind != "" {
			layer.MediaType += "+" + kind
		}
		manifest.Layers = append(manifest.Layers, layer)
	}
	if len(saved[0].RepoTags) > 0 {
		a.name = saved[0].RepoTags[0]
	}
	a.top, err = json.Marshal(manifest)
	return err
}

// add makes a member a blob.
func (a *archive) add(name string) (ocispec.Descriptor, error) {
	m, err := a.member(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, err := digest.FromReader(m)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("%s: %w", name, err)
	}
	a.blobs[d] = m
	return ocispec.Descriptor{Digest: d, Size: m.Size()}, nil
}

// compressionOf returns gzip, zstd or nothing, by the first bytes of a file (RFC 1952, RFC 8878).
func compressionOf(r io.ReaderAt) string {
	magic := make([]byte, 4)
	if _, err := r.ReadAt(magic, 0); err != nil {
		return ""
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	}
	return ""
}
