// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// lazily has images pulled lazily.
func lazily(s *v1alpha1.WangellServiceSpec) {
	s.ImagePull = &v1alpha1.ImagePull{Mode: v1alpha1.PullLazy}
}

// lastWanted returns the images that a daemon was last told of.
func (d *fakeDaemon) lastWanted() []wire.WantedImage {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.images) == 0 {
		return nil
	}
	return d.images[len(d.images)-1].Images
}

// A service that pulls lazily uses the nodes that are set up for it, and another with the same image and all of it
// makes its node pull all of it.
func TestLazyPullsUseTheNodesThatAreSetUp(t *testing.T) {
	w := newClusterWith(t, func(c *fakeCluster) {
		c.labels = map[string]map[string]string{"n2": {v1alpha1.LabelLazy: "true"}}
	}, func(c *Config) { c.ImageSettle, c.Lazy = 200*time.Millisecond, true })
	const ref = "registry.example/a:1"
	w.apply(newService("a", lazily))
	want := wire.WantedImage{Ref: ref, Policy: wire.ImageIfNotPresent, Lazy: true}
	w.until("n2 is to pull it lazily", func() bool { return slices.Equal(w.d2.lastWanted(), []wire.WantedImage{want}) })
	if got := w.d.lastWanted(); len(got) > 0 {
		t.Errorf("n1, which is not set up, is to have %v", got)
	}
	if st := w.status("a"); st.Lazy != images.LazyOn {
		t.Errorf("its pods: %v", st.Lazy)
	}
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5"})
	w.images("a", "Present")
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5", Reason: "NotLazy",
		Message: "no layer"})
	if st := w.images("a", "NotLazy"); st.Ready != "True" || !strings.HasSuffix(st.Message, "on n2: no layer") {
		t.Errorf("%+v", st)
	}
	w.apply(newService("a", lazily), newService("b", func(s *v1alpha1.WangellServiceSpec) { s.Image = ref }))
	want.Lazy = false
	w.until("n2 is to pull all of it", func() bool { return slices.Equal(w.d2.lastWanted(), []wire.WantedImage{want}) })
}

// Where nothing is set up for lazy pulls, images are pulled in full, and the status says why.
func TestImagesArePulledInFullWhereNothingIsSetUp(t *testing.T) {
	for _, c := range []struct {
		enabled bool
		why     string
	}{{false, "lazy.enabled is false"}, {true, "has the label wangell.loutres.me/lazy=true"}} {
		w := newClusterWith(t, nil, func(o *Config) { o.ImageSettle, o.Lazy = 200*time.Millisecond, c.enabled })
		const ref = "registry.example/a:1"
		w.apply(newService("a", lazily))
		w.untilWants(w.d, ref)
		w.untilWants(w.d2, ref)
		if got := w.d.lastWanted(); got[0].Lazy {
			t.Errorf("n1 is to pull %+v", got)
		}
		w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5"})
		st := w.images("a", "NotLazy")
		if st.Ready != "True" || !strings.Contains(st.Message, c.why) || w.status("a").Lazy != images.LazyOff {
			t.Errorf("%+v", st)
		}
	}
}

// A pod whose files cannot be fetched is ended when its own node reports that; the event names file and registry. The
// next one prefers other nodes, although none has the image.
func TestAPodWhoseFilesCannotBeHadIsReplacedElsewhere(t *testing.T) {
	labels := map[string]string{v1alpha1.LabelLazy: "true"}
	w := newClusterWith(t, func(c *fakeCluster) {
		c.labels = map[string]map[string]string{"n1": labels, "n2": labels}
	}, func(c *Config) { c.ImageSettle, c.Lazy = 200*time.Millisecond, true })
	const ref = "registry.example/a:1"
	a := newService("a", lazily)
	events := w.c.Subscribe(t.Context())
	w.apply(a)
	w.untilWants(w.d, ref)
	w.untilWants(w.d2, ref)
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5"})
	w.images("a", "Present")
	vip := w.vip("a")
	w.d.syn(vip)
	w.untilPods(vip, " serving")
	pod := w.status("a").Pods[0].ID

	const why = "/model of image r cannot be fetched from registry r: gone"
	w.d2.send(&wire.Unreadable{UID: pod, Cause: "a report of another node"})
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImageFailed, Reason: cri.ReasonUnreadable, Message: why})
	w.until("the other node is preferred", func() bool {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return slices.Equal(w.cluster.preferred[runtime.KeyOf(a)], []string{"n2"})
	})
	if st := w.status("a"); len(st.Pods) != 1 || st.Pods[0].ID != pod || st.Images.Reason != cri.ReasonUnreadable {
		t.Fatalf("before the report: %+v", st)
	}
	w.d.send(&wire.Unreadable{UID: pod, Cause: why})
	w.until("the pod is ended", func() bool {
		running, _, _ := w.rt.state()
		return len(running) == 0
	})
	for e := range events {
		if e.Kind == EventReport && strings.Contains(e.Text, why) {
			if !strings.Contains(e.Text, pod) || !strings.Contains(e.Text, "node n1") || e.Severity != SeverityError {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	w.d.syn(vip)
	w.until("another one serves", func() bool {
		st := w.status("a")
		return len(st.Pods) == 1 && st.Pods[0].ID != pod
	})
}
