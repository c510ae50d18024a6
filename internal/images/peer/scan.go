// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/images/readapi"
	"wangell.loutres.me/internal/wire"
)

const (
	// scanEvery is how often containerd's blobs are looked at anew: others may remove them.
	scanEvery = 5 * time.Minute
)

// scan looks at containerd's blobs repeatedly until ctx ends.
func (m *Mirror) scan(ctx context.Context) {
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.scans:
		case <-tick.C:
		}
		m.scanImages(ctx)
		m.scanLazy()
		m.tidy(ctx)
	}
}

// scanImages records which blobs of shared images containerd has.
func (m *Mirror) scanImages(ctx context.Context) {
	found := map[blobindex.Key]uint64{}
	for _, k := range m.images(ctx) {
		m.walk(ctx, k.Repository, ocispec.Descriptor{Digest: digestOf(k)}, found)
	}
	m.mu.Lock()
	var missed []blobindex.Key // of images that are being pulled, or that are gone
	for k := range m.stored {
		if _, still := found[k]; !still {
			missed = append(missed, k)
		}
	}
	m.mu.Unlock()
	var gone []blobindex.Key
	for _, k := range missed {
		if _, err := m.cfg.Content.Info(ctx, digestOf(k)); errdefs.IsNotFound(err) {
			gone = append(gone, k)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range gone {
		m.forget(k)
	}
	for k, size := range found {
		if _, known := m.stored[k]; !known && m.mayShare(k) {
			m.stored[k] = size
			m.changes[k] = wire.Blob{Digest: k.Digest, Size: size, State: wire.BlobComplete}
			m.notify()
		}
	}
}

// walk adds a blob, and all blobs that it names, to found if containerd has them.
func (m *Mirror) walk(ctx context.Context, repository string, d ocispec.Descriptor, found map[blobindex.Key]uint64) {
	k, ok := keyOf(repository, d.Digest)
	if _, known := found[k]; !ok || known || len(found) >= maxBlobs {
		return
	}
	info, err := m.cfg.Content.Info(ctx, d.Digest)
	if errdefs.IsNotFound(err) {
		m.lookLazy(k)
	}
	if err != nil || info.Size <= 0 {
		return
	}
	found[k] = uint64(info.Size)
	leaf := d.MediaType != "" && !images.IsManifestType(d.MediaType) && !images.IsIndexType(d.MediaType)
	if leaf || info.Size > maxManifest {
		return
	}
	text, err := content.ReadBlob(ctx, m.cfg.Content, d)
	if err != nil {
		return
	}
	m.learn(repository, text)
	d.MediaType, d.Size = readapi.MediaType(text), info.Size
	children, err := images.Children(ctx, m.cfg.Content, d)
	if err != nil {
		return
	}
	for _, c := range children {
		m.walk(ctx, repository, c, found)
	}
}

// tidy removes the files of blobs that containerd has.
func (m *Mirror) tidy(ctx context.Context) {
	m.mu.Lock()
	var complete []*download
	for _, d := range m.downloads {
		if d.complete() {
			complete = append(complete, d)
		}
	}
	m.mu.Unlock()
	for _, d := range complete {
		_, err := m.cfg.Content.Info(ctx, digestOf(d.key))
		m.mu.Lock()
		switch {
		case err == nil && m.downloads[d.key] == d:
			if _, known := m.stored[d.key]; !known {
				m.stored[d.key] = d.size // it is announced already
			}
			m.drop(d, nil)
		case err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil:
			m.cfg.Log.Warn("cannot check whether containerd has a blob", "digest", digestOf(d.key), "error", err)
		}
		m.mu.Unlock()
	}
}
