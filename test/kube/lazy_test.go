// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/e2e"
)

// lazyNode returns the name of the node that has the label of nodes that are set up for lazy pulls: the last one.
func (c *cluster) lazyNode() string { return c.Nodes[len(c.Nodes)-1].Name }

// testLazy: pods of a service that pulls lazily start from an image whose layers the node's containerd never gets, on a
// node that is set up for that; and from all of it elsewhere. They come back when the snapshotter is restarted.
func testLazy(t *testing.T) {
	const key, elsewhere = "default/lazy", "default/not-lazy"
	n := lab.Nodes[len(lab.Nodes)-1]
	path := pushLargeAt(t)
	to := strings.Replace(path, ":", ":lazy-", 1)
	if _, err := convert.Run(t.Context(), convert.Options{
		Source: lab.Registry.PushAddress + "/" + path, Destination: lab.Registry.PushAddress + "/" + to,
		Layers: convert.Layers{Mode: convert.Keep}, Compression: convert.Compression{Format: convert.EStargz},
	}); err != nil {
		t.Fatal(err)
	}
	ref := "registry.cluster.local:5000/" + to
	lab.snapshotterReady(t, "")
	lab.apply(t, strings.Replace(manifest(key, "imagePull: {mode: Lazy}"), serverImage, ref, 1))
	lab.apply(t, fmt.Sprintf(`
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: not-lazy, namespace: default}
spec:
  port: 80
  targetPort: 8080
  imagePull: {mode: Lazy}
  template:
    spec:
      nodeSelector: {kubernetes.io/hostname: %s}
      containers: [{name: server, image: %q}]
`, lab.Nodes[0].Name, ref))

	lab.imageReady(t, key, metav1.ConditionTrue, "Present")
	e2e.MustAsk(t, lab.client, lab.address(t, key))
	pod := lab.pods(t, key)[0]
	out := e2e.Must(lab.kubectl("", "get", "pod", pod, "-o", "jsonpath={.spec.nodeName} {.spec.runtimeClassName}"))(t)
	if out != n.Name+" "+v1alpha1.LazyRuntime {
		t.Errorf("the pod has node and class %q", out)
	}
	if hasLayers(t, n, ref) {
		t.Errorf("containerd on %s has the layers of %s", n.Name, ref)
	}
	mounts := string(e2e.Must(os.ReadFile(fmt.Sprintf("/proc/%d/mounts", n.HolderPid)))(t))
	if !strings.Contains(mounts, "fuse.wangell-lazy") {
		t.Errorf("no layer is mounted on %s:\n%s", n.Name, mounts)
	}

	why := lab.imageReady(t, elsewhere, metav1.ConditionTrue, "NotLazy")
	if !strings.Contains(why, v1alpha1.LabelLazy) {
		t.Errorf("%s: %q", elsewhere, why)
	}
	e2e.MustAsk(t, lab.client, lab.address(t, elsewhere))
	if !hasLayers(t, lab.Nodes[0], ref) {
		t.Errorf("containerd on %s lacks layers of %s", lab.Nodes[0].Name, ref)
	}

	snapshotter, first := lab.snapshotterReady(t, ""), e2e.MustAsk(t, lab.client, lab.address(t, key)).Instance
	e2e.Must(lab.kubectl("", "delete", "pod", "-n", productNamespace, "-l", lazyLabel, "--wait"))(t)
	lab.snapshotterReady(t, snapshotter)
	e2e.Eventually(t, "another container serves", func() (bool, string) {
		a, err := e2e.Ask(lab.client, lab.address(t, key))
		return err == nil && a.Instance != first, fmt.Sprint(a, err)
	})
	e2e.Must(lab.kubectl("", "delete", "wgs", "lazy", "not-lazy", "--wait"))(t)
}

const lazyLabel = "app.kubernetes.io/component=lazy"

// snapshotterReady waits until the snapshotter's pod is ready and not the one before, and returns its UID.
func (c *cluster) snapshotterReady(t *testing.T, before string) (uid string) {
	t.Helper()
	e2e.Eventually(t, "the snapshotter is ready", func() (bool, string) {
		out, err := c.kubectl("", "get", "pods", "-n", productNamespace, "-l", lazyLabel, "-o",
			`jsonpath={range .items[*]}{.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}{end}`)
		id, ready, _ := strings.Cut(out, " ")
		uid = id
		return err == nil && ready == "True" && id != before, fmt.Sprint(out, err)
	})
	return uid
}

// hasLayers reports whether the containerd of a node has all layers of an image.
func hasLayers(t *testing.T, n clusterfile.Node, ref string) bool {
	t.Helper()
	store, err := cri.OpenImages(n.ContainerdSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	return e2e.Must(store.Whole(t.Context(), ref))(t)
}
