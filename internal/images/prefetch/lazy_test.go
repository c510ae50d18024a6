// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"context"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

// lazyStore is a Store whose node can be set up for lazy pulls.
type lazyStore struct {
	*cri.Images
	n *node
}

func (s lazyStore) state() lazyNode {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return s.n.lazy
}

// lazyNode is what a lazyStore has.
type lazyNode struct {
	ready, plain bool            // plain: images have no layer in a format for lazy pulls
	lazily       map[string]bool // images whose layers are not here
}

func (s lazyStore) LazyReady(context.Context) error {
	if !s.state().ready {
		return cri.NewImageError(cri.ReasonLazyNotReady, "no handler", nil)
	}
	return nil
}

func (s lazyStore) PullLazily(ctx context.Context, ref string) error {
	s.n.mu.Lock()
	s.n.lazy.lazily[ref] = true
	s.n.mu.Unlock()
	return s.Images.Pull(ctx, ref)
}

func (s lazyStore) Pull(ctx context.Context, ref string) error {
	s.n.mu.Lock()
	delete(s.n.lazy.lazily, ref)
	s.n.mu.Unlock()
	return s.Images.Pull(ctx, ref)
}

func (s lazyStore) LazyFormat(context.Context, string) (lazy, known bool) {
	return !s.state().plain, true
}

func (s lazyStore) Whole(_ context.Context, ref string) (bool, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return !s.n.lazy.lazily[ref], nil
}

// An image that is wanted lazily is pulled so, once the node is set up for that; and all of it once that is wanted.
func TestAnImageIsPulledLazilyAndInFullLater(t *testing.T) {
	n := newNode(t)
	const ref = "registry.example/model:v1"
	lazy := want(ref)
	lazy[0].Lazy = true
	n.keeper.Want(lazy)
	n.until("the node is not set up", func() bool { return n.state(ref).Reason == cri.ReasonLazyNotReady })
	if r := n.state(ref); r.State != wire.ImageFailed || len(n.rt.Images.Pulls()) != 0 {
		t.Errorf("%+v after pulls %v", r, n.rt.Images.Pulls())
	}
	n.setLazy(func(l *lazyNode) { l.ready = true })
	n.present(ref)
	if r := n.state(ref); r.Reason != "" || len(n.rt.Images.Pulls()) != 1 {
		t.Errorf("%+v after pulls %v", r, n.rt.Images.Pulls())
	}
	n.setLazy(func(l *lazyNode) { l.plain = true })
	n.until("it is told that it is there in full", func() bool { return n.state(ref).Reason == cri.ReasonNotLazy })
	n.keeper.Want(want(ref))
	n.until("all of it is pulled", func() bool { return len(n.rt.Images.Pulls()) == 2 })
	n.until("it is present again", func() bool {
		r := n.state(ref)
		return r.State == wire.ImagePresent && r.Reason == ""
	})
}

// An unreadable image counts as missing on the node, until a time.
func TestAnUnreadableImageIsReportedAsFailedForAWhile(t *testing.T) {
	n := newNode(t)
	const ref = "registry.example/model:v1"
	n.setLazy(func(l *lazyNode) { l.ready = true })
	lazy := want(ref)
	lazy[0].Lazy = true
	n.keeper.Want(lazy)
	n.present(ref)
	n.keeper.Unreadable(ref, "gone", time.Now().Add(-time.Second))
	n.keeper.Unreadable("registry.example/other:v1", "gone", time.Now().Add(time.Hour))
	if r := n.state(ref); r.State != wire.ImagePresent {
		t.Errorf("after a failure that is long ago: %+v", r)
	}
	n.keeper.Unreadable(ref, "gone", time.Now().Add(time.Hour))
	n.until("it was reported", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.ContainsFunc(n.reports, func(r wire.ImageReport) bool {
			return r.State == wire.ImageFailed && r.Reason == cri.ReasonUnreadable && r.Message == "gone"
		})
	})
	n.keeper.mu.Lock() // the time is over
	e := n.keeper.entries[ref]
	e.badFor, e.due = time.Now(), time.Now()
	n.keeper.mu.Unlock()
	n.keeper.notify()
	n.present(ref)
	if pulls := n.rt.Images.Pulls(); len(pulls) != 1 {
		t.Errorf("pulled %v", pulls)
	}
}
