// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// programImage builds an image of one static program, which is its entry point.
func programImage(file string) (v1.Image, error) {
	program, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	base := filepath.Base(file)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: base, Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())),
			nil
	})
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", base, err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", base, err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", base, err)
	}
	c = c.DeepCopy()
	c.Architecture, c.OS = runtime.GOARCH, "linux"
	c.Config.Entrypoint = []string{"/" + base}
	return mutate.ConfigFile(img, c)
}

// push pushes an image to the local registry. The registry in the reference is ignored: nodes are redirected to the
// local one anyway.
func push(ctx context.Context, img v1.Image, registryAddr, reference string) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	sep := ":"
	if strings.HasPrefix(ref.Identifier(), "sha256:") {
		sep = "@"
	}
	to, err := name.ParseReference(registryAddr+"/"+ref.Context().RepositoryStr()+sep+ref.Identifier(), name.Insecure)
	if err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}
