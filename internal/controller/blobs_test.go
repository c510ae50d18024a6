// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/enrolment"
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
		if left := time.Until(time.Unix(int64(got.Expires), 0)); left < grantFor-time.Minute || left > grantFor {
			t.Errorf("the grant is good for %v", left)
		}
		return true
	})

	// Nothing is said of what a node is not to have, of what only kubelet may pull, and to a node without a mirror.
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
