// SPDX-License-Identifier: Apache-2.0

// Package debimage builds container images from packages of Debian or Ubuntu, for tests with real servers. It needs
// neither Docker nor a registry nor root. apt downloads packages and their dependencies from the machine's configured
// sources; the machine's own packages and the state of apt do not change. Maintainer scripts are not run.
package debimage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wangell.loutres.me/internal/images/image"
)

// Built is the result of Build.
type Built struct {
	// Tag is the reference of the image.
	Tag string
	// Image has one layer.
	Image v1.Image
	// Packages are the packages in the image, in the order in which apt would install them.
	Packages []Package
}

// Build builds the image of a recipe, or takes it from the user's cache folder if it was built before with the same
// recipe and package versions and is intact. The same recipe and versions always give the same digest.
func Build(ctx context.Context, r Recipe) (*Built, error) {
	b, err := build(ctx, r, cacheDir())
	if err != nil {
		return nil, fmt.Errorf("image %s of packages %s: %w", r.Tag(), strings.Join(r.Packages, ", "), err)
	}
	return b, nil
}

func build(ctx context.Context, r Recipe, cache string) (*Built, error) {
	if cache != "" {
		unlock, err := lock(ctx, filepath.Join(cache, "lock"))
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	work, err := os.MkdirTemp("", "wangell-debimage-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	a, err := newApt(ctx, work, cache)
	if err != nil {
		return nil, err
	}
	a.suite = r.Suite
	all, err := a.resolve(ctx, r.Packages)
	if err != nil {
		return nil, err
	}
	packages := wanted(all, append(maintainerTools, r.Without...))
	b := &Built{Tag: r.Tag(), Packages: packages}
	kept := ""
	if cache != "" {
		key, err := cacheKey(r, packages)
		if err != nil {
			return nil, err
		}
		kept = filepath.Join(cache, r.Name+"-"+key)
		if img, err := cached(kept); err == nil {
			b.Image = img
			return b, nil
		}
	}
	debs, err := a.download(ctx, packages)
	if err != nil {
		return nil, err
	}
	files := baseFiles(r)
	for _, deb := range debs {
		if err := unpack(ctx, deb, files); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	for name, f := range r.Files {
		files[name] = f
	}
	b.Image, err = image.Build(image.Spec{Files: files, Entrypoint: r.Entrypoint, Env: r.Env, User: r.User,
		Volumes:      r.Volumes,
		ExposedPorts: ports(r), StopSignal: r.StopSignal})
	if err != nil {
		return nil, err
	}
	if kept != "" {
		_ = keep(kept, b.Image, r.Name) // the image is complete even if it cannot be cached
	}
	return b, nil
}
