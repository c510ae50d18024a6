// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

const privateImage = "r.example/private:1"

// private is a service whose pods have credentials for the registry of its image.
func private(name string, policy corev1.PullPolicy) *v1alpha1.WangellService {
	return newService(name, func(s *v1alpha1.WangellServiceSpec) {
		s.Image = ""
		s.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers:       []corev1.Container{{Name: "x", Image: privateImage, ImagePullPolicy: policy}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		}}
	})
}

// asked returns for which services kubelet was to pull images on a node.
func (w *clusterWorld) asked(node string) (services []string) {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	for _, p := range w.cluster.pulls {
		if p.Node == node {
			services = append(services, p.Service.Name+" "+p.Image)
		}
	}
	return services
}

// untilWant waits until a daemon is told of an image with a policy, and returns the revision.
func (w *clusterWorld) untilWant(d *fakeDaemon, ref string, is func(wire.WantedImage) bool) (got wire.WantedImage) {
	w.t.Helper()
	w.until(d.node+" is told of "+ref, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.images) == 0 {
			return false
		}
		for _, i := range d.images[len(d.images)-1].Images {
			if i.Ref == ref {
				got = i
			}
		}
		return got.Ref == ref && is(got)
	})
	return got
}

func notPresent(ref string) wire.ImageReport {
	return wire.ImageReport{Ref: ref, State: wire.ImageFailed, Reason: "NotPresent", Message: "not on the node"}
}

func never(w wire.WantedImage) bool { return w.Policy == wire.ImageNever }

// Images of pods with pull secrets are pulled by kubelet, and the daemons look whether they are there. The digest on
// which two nodes agree is what kubelet pulls from then on.
func TestKubeletPullsWhatNeedsItsPodsSecrets(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply(private("a", ""))
	first := w.untilWant(w.d, privateImage, never)
	w.untilWant(w.d2, privateImage, never)
	w.images("a", "Waiting")
	if got := w.asked("n1"); len(got) > 0 {
		t.Errorf("pulled before the daemon has looked: %v", got)
	}
	release := make(chan struct{})
	w.cluster.mu.Lock()
	w.cluster.onPull = func(runtime.ImagePull) error { <-release; return nil }
	w.cluster.mu.Unlock()
	w.d.report(notPresent(privateImage))
	if st := w.images("a", "Pulling"); !strings.Contains(st.Message, "being pulled on n1 since ") {
		t.Errorf("status %+v", st)
	}
	close(release)
	w.untilWant(w.d, privateImage, func(i wire.WantedImage) bool { return never(i) && i.Revision != first.Revision })
	w.d.report(wire.ImageReport{Ref: privateImage, State: wire.ImagePresent, Digest: testDigest("1")})
	w.images("a", "Present")
	fixed := "r.example/private@" + testDigest("1")
	w.d2.report(notPresent(privateImage))
	w.until("n2 pulls it", func() bool { return len(w.asked("n2")) > 0 })
	w.d2.report(wire.ImageReport{Ref: privateImage, State: wire.ImagePresent, Digest: testDigest("1")})
	w.untilWant(w.d, fixed, never)
	w.untilWant(w.d2, fixed, never)
	w.d.report(wire.ImageReport{Ref: fixed, State: wire.ImagePresent, Digest: testDigest("1")})
	w.d2.report(wire.ImageReport{Ref: fixed, State: wire.ImagePresent, Digest: testDigest("1")})
	w.until("both have it", func() bool { return strings.HasPrefix(w.status("a").Images.Message, "on 2 of 2") })
	for _, node := range []string{"n1", "n2"} {
		if got := w.asked(node); !slices.Equal(got, []string{"a " + privateImage}) {
			t.Errorf("%s pulled %v", node, got)
		}
	}
	// An administrator removes it.
	w.d.report(notPresent(fixed))
	w.until("n1 pulls it again", func() bool { return len(w.asked("n1")) == 2 })
}

// A wrong password shows before there is a client, and once the Secret is right, the image comes.
func TestAPullByKubeletThatFailsIsToldAndTriedAgain(t *testing.T) {
	w := newClusterWith(t, func(c *fakeCluster) {
		c.onPull = func(runtime.ImagePull) error {
			return cri.NewImageError(cri.ReasonUnauthorized, "registry r.example refuses it: check Secret default/registry", nil)
		}
	}, func(c *Config) { c.ImageSettle, c.ImageRetry = 200*time.Millisecond, 20*time.Millisecond })
	events := w.c.Subscribe(t.Context())
	w.apply(private("a", ""))
	w.untilWant(w.d, privateImage, never)
	w.d.report(notPresent(privateImage))
	st := w.images("a", "Unauthorized")
	const want = `image "r.example/private:1" on n1: registry r.example refuses it: check Secret default/registry`
	if st.Ready != "False" || !strings.HasPrefix(st.Message, want) {
		t.Errorf("status %+v", st)
	}
	w.until("it is tried again", func() bool { return len(w.asked("n1")) > 2 })
	w.cluster.mu.Lock()
	w.cluster.onPull = nil
	before := len(w.cluster.pulls)
	w.cluster.mu.Unlock()
	w.until("one that succeeds", func() bool { return len(w.asked("n1")) > before })
	w.d.report(wire.ImageReport{Ref: privateImage, State: wire.ImagePresent})
	w.images("a", "Present")
	if n := imageEvents(events); n != 1 {
		t.Errorf("%d events", n)
	}
}

// What a registry refuses to a daemon is left to kubelet, which may have credentials: those of the service account, or
// its own. Also under a new controller, which hears of it before it divides images.
func TestWhatARegistryRefusesToADaemonIsPulledByKubelet(t *testing.T) {
	w := imageCluster(t, nil)
	const ref = "registry.example/a:1"
	refusal := wire.ImageReport{Ref: ref, State: wire.ImageFailed, Reason: cri.ReasonUnauthorized, Message: "401"}
	w.d.report(refusal)
	w.apply(newService("a"))
	w.untilWant(w.d, ref, never)
	w.untilWant(w.d2, ref, func(i wire.WantedImage) bool { return i.Policy == wire.ImageIfNotPresent })
	w.until("n1 pulls it", func() bool { return slices.Equal(w.asked("n1"), []string{"a " + ref}) })
	w.d2.report(refusal)
	w.untilWant(w.d2, ref, never)
	w.until("n2 pulls it", func() bool { return slices.Equal(w.asked("n2"), []string{"a " + ref}) })
	w.d2.report(wire.ImageReport{Ref: ref, State: wire.ImagePresent})
	w.images("a", "Present")
}

// With the policy Always, kubelet pulls an image that the node has already, and again when the service changes.
func TestKubeletPullsAnewWithThePolicyAlways(t *testing.T) {
	w := imageCluster(t, nil)
	there := wire.ImageReport{Ref: privateImage, State: wire.ImagePresent, Digest: testDigest("1")}
	w.apply(private("a", corev1.PullAlways))
	w.untilWant(w.d, privateImage, never)
	w.d.report(there)
	w.until("it is pulled", func() bool { return len(w.asked("n1")) == 1 })
	w.images("a", "Present")
	changed := private("a", corev1.PullAlways)
	changed.Spec.Template.Spec.Containers[0].WorkingDir = "/x"
	w.apply(changed)
	w.until("it is pulled again", func() bool { return len(w.asked("n1")) == 2 })
}

// Of several services with one image, each one's credentials are tried. The policy Never pulls nothing.
func TestTheCredentialsOfAllServicesOfAnImageAreTried(t *testing.T) {
	w := newClusterWith(t, func(c *fakeCluster) {
		c.onPull = func(runtime.ImagePull) error { return errors.New("refused") }
	}, func(c *Config) { c.ImageSettle, c.ImageRetry = 200*time.Millisecond, 10*time.Millisecond })
	plain := newService("b", func(s *v1alpha1.WangellServiceSpec) { s.Image = privateImage })
	w.apply(private("a", ""), plain, private("c", ""))
	w.untilWant(w.d, privateImage, never)
	w.d.report(notPresent(privateImage))
	w.until("both are tried", func() bool {
		got := w.asked("n1")
		return len(got) > 1 && slices.Equal(got[:2], []string{"a " + privateImage, "c " + privateImage})
	})
	w.apply(private("a", corev1.PullNever))
	w.images("a", "NotPresent")
	n := len(w.asked("n1"))
	w.d.report(notPresent(privateImage))
	time.Sleep(100 * time.Millisecond) // enough for several pauses
	if got := w.asked("n1"); len(got) != n {
		t.Errorf("%d pulls with the policy Never", len(got)-n)
	}
}
