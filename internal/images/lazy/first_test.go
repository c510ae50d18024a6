// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/test/testutil/containerdtest"
)

// What a first container opens is recorded, in its order, and comes first in the background when the image is pulled
// again: also what nobody has opened yet this time.
func TestWhatWasReadFirstIsFetchedFirst(t *testing.T) {
	h, s := newHub(t), newSetupWith(t, Config{Settle: time.Hour})
	files := map[string]image.File{}
	for i := range 8 {
		files[fmt.Sprintf("/d/%d", i)] = noise(3 << 20)
	}
	ref := h.push(t, "estargz", files)
	img := s.pull(ref, pluginName)
	dir, remove := s.mount(img, pluginName)
	for _, name := range []string{"d/6", "d/2"} {
		check(t, filepath.Join(dir, name), files["/"+name])
	}
	remove()
	layer := layerOf(t, s, img)
	containerdtest.Until(t, "the trace", func() bool {
		got, err := trace.Read(s.cfg.Root, layer)
		return err == nil && got.Image == ref && slices.Equal(got.Files, []string{"d/6", "d/2"})
	})
	containerdtest.Until(t, "the layer is gone", func() bool {
		s.removeImages()
		return s.server.Stats().Blobs == 0
	})
	s.pull(ref, pluginName)
	store := s.server.store
	store.mu.Lock()
	for _, b := range store.blobs {
		got, err := trace.Read(s.cfg.Root, layer)
		if err != nil || len(got.Blocks) < 2*(3<<20)/blockSize || len(got.Blocks) > len(b.blocks)*4/5 {
			t.Errorf("the trace has %d blocks of %d, %v", len(got.Blocks), len(b.blocks), err)
		}
		// What is fetched first is what the trace begins with, and nothing else before all of that is there.
		wanted := map[int]bool{}
		for _, i := range got.Blocks {
			wanted[i] = true
		}
		for first := true; ; first = false {
			r := b.plan.next(b.blocks, store.piece)
			if r.from == r.to {
				break
			}
			if first && b.blocks[got.Blocks[0]] == missing && r.from != got.Blocks[0] {
				t.Errorf("block %d is fetched first, want %d", r.from, got.Blocks[0])
			}
			for i := r.from; i < r.to; i++ {
				if !wanted[i] {
					t.Errorf("block %d is fetched first", i)
				}
			}
			b.blocks.set(r, coming)
			defer b.blocks.set(r, missing)
		}
	}
	store.mu.Unlock()
}

// layerOf returns the digest of the only layer of an image.
func layerOf(t *testing.T, s *setup, img interface{ Name() string }) digest.Digest {
	t.Helper()
	i, err := s.Client.ImageService().Get(t.Context(), img.Name())
	if err != nil {
		t.Fatal(err)
	}
	m, err := images.Manifest(t.Context(), s.Client.ContentStore(), i.Target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[0].Digest
}

func TestThePlanIsFetchedInItsOrder(t *testing.T) {
	b := make(blocks, 10)
	b[5] = here
	var p plan
	p.add(len(b), []int{8, 9, 4, 5, 6, 2, 8, -1, 10})
	var got []run
	for {
		r := p.next(b, 2)
		if r.from == r.to {
			break
		}
		got = append(got, r)
		b.set(r, coming)
	}
	if want := []run{{8, 10}, {4, 5}, {6, 7}, {2, 3}}; !slices.Equal(got, want) {
		t.Errorf("fetched %v, want %v", got, want)
	}
	b.set(run{8, 10}, missing) // a request failed
	if r := p.next(b, 4); r != (run{8, 10}) {
		t.Errorf("after a failure %v", r)
	}
}

// An image that was rewritten by what was read of it brings that first, although it has other digests.
func TestARewrittenImageBeginsWithWhatWasRead(t *testing.T) {
	h, s := newHub(t), newSetupWith(t, Config{Settle: time.Hour})
	files := map[string]image.File{}
	for i := range 8 {
		files[fmt.Sprintf("/d/%d", i)] = noise(1 << 20)
	}
	for _, compression := range []string{"estargz", "zstdchunked"} {
		img := s.pull(h.push(t, compression, files), pluginName)
		dir, remove := s.mount(img, pluginName)
		check(t, filepath.Join(dir, "d/7"), files["/d/7"])
		remove()
		layer := layerOf(t, s, img)
		containerdtest.Until(t, "the trace", func() bool {
			got, err := trace.Read(s.cfg.Root, layer)
			return err == nil && len(got.Files) == 1
		})
		how, err := convert.ParseCompression(compression)
		if err != nil {
			t.Fatal(err)
		}
		ref := h.host + "/rewritten-" + compression + ":v1"
		if _, err := convert.Run(t.Context(), convert.Options{
			Source: img.Name(), Destination: ref, Layers: convert.Layers{Mode: convert.Keep}, Compression: how, Verify: true,
			First: func(d digest.Digest) []string {
				got, err := trace.Read(s.cfg.Root, d)
				if err != nil {
					t.Error(err)
				}
				return got.Files
			},
		}); err != nil {
			t.Fatal(err)
		}
		rewritten := s.pull(ref, pluginName)
		store := s.server.store
		store.mu.Lock()
		b := store.blobs[layerOf(t, s, rewritten)]
		if got, want := len(b.plan.in), (1<<20)/blockSize; got < want || got > want+1 || !b.plan.in[0] {
			t.Errorf("%s: %d blocks are fetched first, want %d from the beginning", compression, got, want)
		}
		store.mu.Unlock()
		dir, remove = s.mount(rewritten, pluginName)
		for name, f := range files {
			check(t, filepath.Join(dir, name), f)
		}
		remove()
	}
}
