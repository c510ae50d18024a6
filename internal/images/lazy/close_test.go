// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/containerdtest"
)

// The end does not wait for a registry that does not answer.
func TestCloseDoesNotWaitForTheRegistry(t *testing.T) {
	h, s := newHub(t), newSetupWith(t, Config{Settle: time.Hour})
	gate := make(chan struct{})
	defer close(gate)
	h.gate.Store(&gate)
	wanted := noise(1000)
	img := s.pull(h.push(t, "estargz", map[string]image.File{"/wanted": wanted},
		map[string]image.File{"/a": noise(24 << 20)}), pluginName)
	dir, remove := s.mount(img, pluginName)
	check(t, filepath.Join(dir, "wanted"), wanted)
	remove()
	s.fetchAll()
	containerdtest.Until(t, "a request that is not answered", func() bool { return h.held.Load() > 0 })
	if err := s.server.Close(); err != nil {
		t.Fatal(err)
	}
	if left := mounts(t, s.cfg.Root); len(left) > 0 {
		t.Errorf("after the end are mounted: %v", left)
	}
	h.gate.Store(nil)
	s.start()
}

// A start that mounts what an earlier one had can be given up while the registry does not answer.
func TestAStartCanBeGivenUp(t *testing.T) {
	h, s := newHub(t), newSetup(t)
	s.pull(h.push(t, "estargz", map[string]image.File{"/a": noise(1 << 20)}), pluginName)
	if err := s.server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.cfg.Root, "blobs")); err != nil {
		t.Fatal(err)
	}
	h.mute.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	cfg := s.cfg
	cfg.Patience = time.Hour
	if _, err := Start(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start: %v", err)
	}
	if left := mounts(t, s.cfg.Root); len(left) > 0 {
		t.Errorf("after the end are mounted: %v", left)
	}
	h.mute.Store(false)
	s.start()
}
