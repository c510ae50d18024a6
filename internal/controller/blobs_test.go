// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

const blobSize = 40 << 20 // ten pieces

// mirrorOf is the mirror of a node.
func mirrorOf(node string, print byte) *wire.Mirror {
	return &wire.Mirror{Addr: netip.AddrPortFrom(nodeAddr(node), 7948), Fingerprint: [32]byte{print}}
}

// asks reports a blob of a repository that a daemon fetches and has nothing of.
func asks(repository string) *wire.Blobs {
	return &wire.Blobs{Repository: repository, Blobs: []wire.Blob{{
		Digest: wire.BlobDigest{9}, Size: blobSize, State: wire.BlobPartial,
	}}}
}

// untilHolders waits for the first or next answer to a daemon.
func (w *clusterWorld) untilHolders(d *fakeDaemon) (got *wire.Holders) {
	w.t.Helper()
	w.until(d.node+" is answered", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.holders) > 0 {
			got = d.holders[0]
			d.holders = nil
		}
		return got != nil
	})
	return got
}

func TestNodesLearnWhoElseHasABlob(t *testing.T) {
	w := imageCluster(t, nil)
	w.apply(newService("a"), newService("loaded", func(s *v1alpha1.WangellServiceSpec) { s.ImagePullPolicy = "Never" }))
	const repository = "registry.example/a"
	w.untilWants(w.d, repository+":1", "registry.example/loaded:1")
	w.untilWants(w.d2, repository+":1", "registry.example/loaded:1")
	w.d.send(mirrorOf("n1", 1))
	w.d2.send(mirrorOf("n2", 2))

	w.d.send(asks(repository))
	first := w.untilHolders(w.d)
	if len(first.Lease) == 0 || len(first.Holders) != 0 || first.Size != blobSize {
		t.Errorf("the first node: %+v", first)
	}
	w.d.send(&wire.Blobs{Repository: repository, Blobs: []wire.Blob{{
		Digest: wire.BlobDigest{9}, Size: blobSize, State: wire.BlobComplete,
	}}})
	w.until("the second node learns of the first", func() bool {
		w.d2.send(asks(repository))
		got := w.untilHolders(w.d2)
		if len(got.Holders) != 1 || !got.Holders[0].Complete {
			return false
		}
		h := got.Holders[0]
		if h.Mirror != *mirrorOf("n1", 1) {
			t.Errorf("where it is: %+v", h.Mirror)
		}
		key := w.cfg.Key.ForNode("n1")
		if !enrolment.Grant(h.Grant).Allows(key, [32]byte{2}, got.Digest, got.Expires) {
			t.Error("the grant does not let it in")
		}
		left := time.Until(time.Unix(int64(got.Expires), 0))
		if left < images.GrantFor-time.Minute || left > images.GrantFor {
			t.Errorf("the grant is good for %v", left)
		}
		return true
	})

	// Nothing is said of what no service needs there, of what may not be pulled, and to a node without a mirror.
	w.d2.send(asks("registry.example/other"))
	w.d2.send(asks("registry.example/loaded"))
	w.d2.send(asks(repository))
	if got := w.untilHolders(w.d2); got.Repository != repository {
		t.Errorf("answered: %+v", got)
	}
	// A node that is gone is no holder.
	w.d.client.Close()
	w.until("the first node is forgotten", func() bool {
		w.d2.send(asks(repository))
		got := w.untilHolders(w.d2)
		return len(got.Holders) == 0 && len(got.Lease) > 0
	})
}

// untilNeeds waits until a daemon that shares images was last told of these repositories.
func (w *clusterWorld) untilNeeds(d *fakeDaemon, want ...string) {
	w.t.Helper()
	w.until(d.node+" knows what its pods may need", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.neededTimes > 0 && slices.Equal(d.needed, want)
	})
}

// Nodes share what a pod may need there, also if only a wake pulls it, or other nodes are to have it.
func TestNodesShareWhatWakesPull(t *testing.T) {
	w := imageCluster(t, func(c *fakeCluster) {
		c.taints = map[string][]corev1.Taint{"n2": {{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}}
	})
	onWake := &v1alpha1.ImagePull{When: v1alpha1.PullOnWake}
	one := intstr.FromInt32(1)
	bound := newService("bound", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.ImagePull = "", onWake
		s.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "x", Image: "bound:1"}},
			Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
		}}
	})
	w.apply(bound, newService("wake", func(s *v1alpha1.WangellServiceSpec) { s.ImagePull = onWake }),
		newService("one", func(s *v1alpha1.WangellServiceSpec) { s.ImagePull = &v1alpha1.ImagePull{Nodes: &one} }),
		newService("loaded", func(s *v1alpha1.WangellServiceSpec) { s.ImagePullPolicy = "Never" }))
	w.d.send(mirrorOf("n1", 1))
	w.untilNeeds(w.d, "docker.io/library/bound", "registry.example/one", "registry.example/wake")
	w.d2.set(func(d *fakeDaemon) {
		if d.neededTimes > 0 {
			t.Error("a node that shares nothing was told of repositories")
		}
	})
	w.d2.send(mirrorOf("n2", 2))
	w.untilNeeds(w.d2, "docker.io/library/bound")

	w.d.send(&wire.Blobs{Repository: "docker.io/library/bound", Blobs: []wire.Blob{{
		Digest: wire.BlobDigest{9}, Size: blobSize, State: wire.BlobComplete,
	}}})
	w.until("the second node learns of the first", func() bool {
		w.d2.send(asks("docker.io/library/bound"))
		return len(w.untilHolders(w.d2).Holders) == 1
	})
	w.d2.send(asks("registry.example/wake")) // whose pods cannot run there
	w.d2.send(asks("docker.io/library/bound"))
	if got := w.untilHolders(w.d2); got.Repository != "docker.io/library/bound" {
		t.Errorf("answered: %+v", got)
	}
	// A service that is gone takes its repository with it, and another session begins anew.
	w.apply(bound)
	w.untilNeeds(w.d, "docker.io/library/bound")
	w.d.client.Close()
	w.untilDaemons(1)
	again := w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")})
	t.Cleanup(func() { again.client.Close() })
	again.send(mirrorOf("n1", 1))
	w.untilNeeds(again, "docker.io/library/bound")
}
