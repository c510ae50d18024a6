// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// imageCluster is a cluster of two nodes that divides images soon.
func imageCluster(t *testing.T, before func(*fakeCluster)) *clusterWorld {
	t.Helper()
	return newClusterWith(t, before, func(c *Config) { c.ImageSettle = 200 * time.Millisecond })
}

// wants returns the names of the images that a daemon was last told of, and how often it was told.
func (d *fakeDaemon) wants() (refs []string, times int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.images {
		if m.Piece == 0 {
			refs, times = nil, times+1
		}
		for _, i := range m.Images {
			refs = append(refs, i.Ref)
		}
	}
	return refs, times
}

func (w *clusterWorld) untilWants(d *fakeDaemon, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.until(fmt.Sprintf("%s wants %v", d.node, want), func() bool {
		got, n := d.wants()
		return n > 0 && slices.Equal(got, want)
	})
}

// images returns a service's ImageStatus, once it has a reason.
func (w *clusterWorld) images(name, reason string) status.Images {
	w.t.Helper()
	var st status.Images
	w.until(name+" has the reason "+reason, func() bool { st = w.status(name).Images; return st.Reason == reason })
	return st
}

func (d *fakeDaemon) report(r ...wire.ImageReport) { d.send(&wire.ImageReports{Images: r}) }

func TestImagesArePulledByNodesAndToldOf(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply(newService("a"), newService("lazy", func(s *v1alpha1.WangellServiceSpec) {
		s.ImagePull = &v1alpha1.ImagePull{When: v1alpha1.PullOnWake}
	}))
	const ref = "registry.example/a:1"
	w.untilWants(w.d, ref)
	w.untilWants(w.d2, ref)
	if st := w.images("lazy", "OnWake"); st.Ready != "Unknown" {
		t.Errorf("lazy: %+v", st)
	}
	w.images("a", "Waiting")
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePulling, Since: 1})
	if st := w.images("a", "Pulling"); st.Ready != "False" || !strings.Contains(st.Message, "being pulled on n1 since ") {
		t.Errorf("pulling: %+v", st)
	}
	w.d.send(&wire.ImagePulled{Ref: ref, Done: 120e6, Total: 520e6})
	w.until("progress shows", func() bool {
		return strings.Contains(w.status("a").Images.Message, " (120.0 of 520.0 MB)")
	})
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5"})
	st := w.images("a", "Present")
	if st.Ready != "True" || !strings.HasPrefix(st.Message, "on 1 of 2 nodes (n1), digest sha256:5; ") {
		t.Errorf("present: %+v", st)
	}
	preferred := func() []string {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return w.cluster.preferred["default/a"]
	}
	w.until("pods prefer n1", func() bool { return slices.Equal(preferred(), []string{"n1"}) })
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: "sha256:5"})
	w.until("pods prefer both", func() bool { return len(preferred()) == 2 })
	w.apply(newService("lazy"))
	w.untilWants(w.d, "registry.example/lazy:1")
	w.until("nothing is preferred for a service that is gone", func() bool { return preferred() == nil })
}

// A failure shows in the status before there is a client, and is told once, however often the pull is tried.
func TestAnImageThatCannotBePulledIsToldOnce(t *testing.T) {
	w := imageCluster(t, nil)
	events := w.c.Subscribe(t.Context())
	w.apply(newService("a"))
	const ref = "registry.example/a:1"
	w.untilWants(w.d, ref)
	w.untilWants(w.d2, ref)
	gone := wire.ImageReport{Ref: ref, State: wire.ImageFailed, Reason: "NotFound",
		Message: "not found in registry (pull 404): check spec.image"}
	for range 3 {
		w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePulling, Since: 1})
		w.d.report(gone)
		w.d2.report(gone)
	}
	// The daemons report on connections of their own: the first status may name one node only.
	var both status.Status
	w.until("both nodes have failed", func() bool {
		both = w.status("a")
		return strings.Count(both.Images.Message, gone.Message) == 2
	})
	st := both.Images
	if want := fmt.Sprintf("image %q on n", ref); st.Ready != "False" || st.Reason != "NotFound" ||
		!strings.HasPrefix(st.Message, want) {
		t.Errorf("status %+v", st)
	}
	if m := both.Service.Status.Message; m != st.Message {
		t.Errorf("message %q, of the images %q", m, st.Message)
	}
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent})
	w.images("a", "Present")
	if n := imageEvents(events); n != 1 {
		t.Errorf("%d events", n)
	}
}

// A cluster keeps no volume that only the image declares: who loses data with the next sleep is told once.
func TestVolumesOfAnImageThatAreLostAreToldOnce(t *testing.T) {
	w := imageCluster(t, nil)
	events := w.c.Subscribe(t.Context())
	w.apply(newService("a"), newService("b", func(s *v1alpha1.WangellServiceSpec) {
		s.ImageVolumes = v1alpha1.ImageVolumesDiscard
	}))
	w.untilWants(w.d, "registry.example/a:1", "registry.example/b:1")
	w.untilWants(w.d2, "registry.example/a:1", "registry.example/b:1")
	for range 2 {
		for _, d := range []*fakeDaemon{w.d, w.d2} {
			for _, name := range []string{"a", "b"} {
				d.report(wire.ImageReport{Ref: "registry.example/" + name + ":1", State: wire.ImagePresent, Digest: "sha256:5",
					Volumes: []string{"/data"}})
			}
		}
	}
	w.until("both nodes have both", func() bool {
		return strings.HasPrefix(w.status("a").Images.Message, "on 2 of 2") &&
			strings.HasPrefix(w.status("b").Images.Message, "on 2 of 2")
	})
	if text := w.status("a").Images.VolumesNotKept; !strings.Contains(text, "/data is lost when a pod ends") {
		t.Errorf("a: %q", text)
	}
	if text := w.status("b").Images.VolumesNotKept; text != "" {
		t.Errorf("b discards them, and is told: %q", text)
	}
	told := 0
	w.until("the event", func() bool {
		for len(events) > 0 {
			if e := <-events; e.Reason == v1alpha1.EventVolumesNotKept {
				told++
			}
		}
		return told > 0
	})
	if told != 1 {
		t.Errorf("%d events", told)
	}
}

// The set is sent again to a daemon that reconnects, once, and not to one that has it.
func TestADaemonGetsItsImagesInEverySession(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply(newService("a"))
	w.untilWants(w.d, "registry.example/a:1")
	before := 0
	w.until("the other daemon is told of its images", func() bool { _, before = w.d2.wants(); return before > 0 })
	w.d.client.Close()
	w.untilDaemons(1)
	again := w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")})
	t.Cleanup(func() { again.client.Close() })
	w.untilWants(again, "registry.example/a:1")
	if _, n := w.d2.wants(); n != before {
		t.Errorf("the other daemon was told %d times instead of %d", n, before)
	}
	// A set without images is sent, too: the daemon removes what an earlier one has pinned.
	w.apply()
	w.untilWants(again)
}

func TestImagesGoWherePodsCouldRun(t *testing.T) {
	w := imageCluster(t, func(c *fakeCluster) {
		c.taints = map[string][]corev1.Taint{"n2": {{Key: "control-plane", Effect: corev1.TaintEffectNoSchedule}}}
	})
	container := corev1.Container{Name: "x", Image: "x:1"}
	w.apply(newService("a"),
		newService("elsewhere", func(s *v1alpha1.WangellServiceSpec) {
			s.Image = ""
			s.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{container}, NodeSelector: map[string]string{"zone": "none"},
			}}
		}),
		newService("init", func(s *v1alpha1.WangellServiceSpec) {
			s.Image = ""
			s.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers:     []corev1.Container{container},
				InitContainers: []corev1.Container{{Name: "i", Image: "init:1"}},
			}}
		}))
	w.untilWants(w.d, "registry.example/a:1", "x:1", "init:1")
	w.untilWants(w.d2)
	w.images("elsewhere", "NoNode")
}

// testDigest returns a digest that is made of one character.
func testDigest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// Two nodes decide what a tag stands for: the others get that content, also if the tag has moved meanwhile, and also
// under the next controller.
func TestATagIsResolvedOnceForAllNodes(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply(newService("a"))
	const ref = "registry.example/a:1"
	w.untilWants(w.d, ref)
	w.untilWants(w.d2, ref)
	events := w.c.Subscribe(t.Context())
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("1")})
	if st := w.images("a", "Present"); !strings.HasPrefix(st.Message, "on 1 of 2 nodes (n1), digest "+testDigest("1")) {
		t.Errorf("status %+v", st)
	}
	if got := w.status("a").Service.Status.ImageDigests; len(got) != 0 {
		t.Errorf("one node of two has decided: %v", got)
	}
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("1")})
	fixed := "registry.example/a@" + testDigest("1")
	w.untilWants(w.d, fixed)
	w.untilWants(w.d2, fixed)
	w.until("both have it", func() bool { return strings.HasPrefix(w.status("a").Images.Message, "on 2 of 2") })
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("2")}) // the tag has moved
	want := []v1alpha1.ImageDigest{{Image: ref, Digest: testDigest("1")}}
	if got := w.status("a").Service.Status.ImageDigests; !slices.Equal(got, want) {
		t.Errorf("digests %v", got)
	}
	for done := false; !done; {
		select {
		case e := <-events:
			if e.Kind == status.EventImages {
				t.Errorf("event %+v", e)
			}
		default:
			done = true
		}
	}
	// Another image is resolved anew, and the policy Always does not resolve.
	next := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Image = "registry.example/a:2" })
	w.apply(next)
	w.untilWants(w.d, "registry.example/a:2")
	w.until("the old digest is forgotten", func() bool { return len(w.status("a").Service.Status.ImageDigests) == 0 })
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.ImagePullPolicy = corev1.PullAlways }))
	w.untilWants(w.d, ref)
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("2")})
	}
	w.until("both have it again", func() bool { return strings.HasPrefix(w.status("a").Images.Message, "on 2 of 2") })
	if got := w.status("a").Service.Status.ImageDigests; len(got) != 0 {
		t.Errorf("digests with policy Always: %v", got)
	}
}

// A node cannot choose what the others run: not by being the first to report, nor with the name of a node that the
// cluster does not have. If the tag has moved between two pulls, both nodes pull again.
func TestStolenNodeDoesNotChooseWhatOthersRun(t *testing.T) {
	w := imageCluster(t, func(c *fakeCluster) { c.absent = map[string]bool{"gone": true} })
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) {
		s.ImagePull = &v1alpha1.ImagePull{
			Nodes: new(intstr.FromString("All")),
		}
	}))
	const ref = "registry.example/a:1"
	w.untilWants(w.d, ref)
	w.untilWants(w.d2, ref)
	gone := w.daemonOn("gone", &wire.Node{Addr: nodeAddr("gone")})
	t.Cleanup(func() { gone.client.Close() })
	evil := wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("6")}
	gone.report(evil)
	w.d2.report(evil) // the stolen one
	w.until("it is heard", func() bool { return strings.HasPrefix(w.status("a").Images.Message, "on 1 of 2 nodes (n2)") })
	if got := w.status("a").Service.Status.ImageDigests; len(got) != 0 {
		t.Errorf("a node has decided: %v", got)
	}
	if got, _ := gone.wants(); len(got) != 0 {
		t.Errorf("a node that the cluster does not have gets %v", got)
	}
	w.d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("1")})
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		w.untilWant(d, ref, func(i wire.WantedImage) bool { return i.Policy == wire.ImageAlways && i.Revision == 1 })
		d.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent, Digest: testDigest("2")})
	}
	w.untilWants(w.d, "registry.example/a@"+testDigest("2"))
	w.untilWants(w.d2, "registry.example/a@"+testDigest("2"))
}

func TestDigestsOfAnEarlierControllerStay(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply()
	s := Service{Spec: newService("a"), Addr: netip.MustParseAddr("10.46.100.2"), Digests: []v1alpha1.ImageDigest{
		{Image: "registry.example/a:1", Digest: testDigest("1")}, {Image: "registry.example/old:1", Digest: testDigest("2")},
	}}
	if err := w.c.Put(s); err != nil {
		t.Fatal(err)
	}
	w.untilWants(w.d, "registry.example/a@"+testDigest("1"))
	if got := w.status("a").Service.Status.ImageDigests; !slices.Equal(got, s.Digests[:1]) {
		t.Errorf("digests %v", got)
	}
}

// imageEvents counts the events about images that wait for a subscriber.
func imageEvents(events <-chan status.Event) (n int) {
	for {
		select {
		case e := <-events:
			if e.Kind == status.EventImages {
				n++
			}
		default:
			return n
		}
	}
}

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
	if st := w.status("a"); st.Lazy != status.LazyOn {
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
		if st.Ready != "True" || !strings.Contains(st.Message, c.why) || w.status("a").Lazy != status.LazyOff {
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
		return slices.Equal(w.cluster.preferred[v1alpha1.KeyOf(a)], []string{"n2"})
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
		if e.Kind == status.EventReport && strings.Contains(e.Text, why) {
			if !strings.Contains(e.Text, pod) || !strings.Contains(e.Text, "node n1") || e.Severity != status.SeverityError {
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
