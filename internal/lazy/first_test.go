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

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/lazy/trace"
	"wangell.loutres.me/internal/testutil/containerdtest"
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
			r := b.plan.next(b.blocks, pieceBlocks)
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
