// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/test/testutil/e2e"
)

// largeImage is the size of an image that no node has, in bytes that cannot be compressed.
const largeImage = 50 << 20

// testPrefetch: an image is on nodes, and kept there, before the first client; one that does not exist is told of while
// the service sleeps; and nothing stays pinned.
func testPrefetch(t *testing.T) {
	const key = "default/prefetched"
	ref := pushLarge(t)
	const missing = "registry.cluster.local:5000/no-such-image:v1"
	lab.apply(t, strings.Replace(manifest("default/mistyped", ""), serverImage, missing, 1))
	lab.apply(t, strings.Replace(manifest(key, ""), serverImage, ref, 1))
	addr := lab.address(t, key)
	lab.imageReady(t, key, metav1.ConditionTrue, "Present")
	fixed := lab.fixedImage(t, key)
	var have []string
	for _, n := range lab.Nodes {
		if slices.Contains(pinned(t, n.ContainerdSocket), fixed) {
			have = append(have, n.Name)
		}
	}
	if len(have) == 0 {
		t.Error("no node has pinned the image")
	}
	if pods := lab.pods(t, key); len(pods) > 0 {
		t.Errorf("pods before the first client: %v", pods)
	}
	begin := time.Now()
	e2e.MustAsk(t, lab.client, addr)
	first := time.Since(begin)
	pod := lab.pods(t, key)[0]
	where := e2e.Must(lab.kubectl("", "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"))(t)
	if !slices.Contains(have, where) {
		t.Errorf("the pod runs on %s, the image is on %v", where, have)
	}
	runs := e2e.Must(lab.kubectl("", "get", "pod", pod, "-o", "jsonpath={.spec.containers[0].image}"))(t)
	if runs != fixed {
		t.Errorf("the pod runs %s, the digest is %s", runs, fixed)
	}
	e2e.Eventually(t, "kubelet tells of the image", func() (bool, string) {
		out, err := lab.kubectl("", "get", "events", "--field-selector", "involvedObject.name="+pod, "-o",
			"jsonpath={.items[*].reason}")
		if strings.Contains(out, "Pulling") {
			t.Fatalf("kubelet pulled the image: %s", out)
		}
		return strings.Contains(out, "Pulled"), fmt.Sprint(out, err)
	})
	e2e.Eventually(t, "the first wake is told", func() (bool, string) {
		s, err := lab.find(key)
		if err != nil || s.Status.LastWake == nil {
			return false, fmt.Sprint(err)
		}
		t.Logf("first wake: %+v", s.Status.LastWake.Phases)
		return true, ""
	})

	var later []time.Duration // wakes with an image that was there before
	for range 5 {
		lab.sleep(t, key)
		begin := time.Now()
		e2e.MustAsk(t, lab.client, addr)
		later = append(later, time.Since(begin))
	}
	slices.Sort(later)
	t.Logf("first wake %v, median of the next five %v: %.2f times", first, later[2], first.Seconds()/later[2].Seconds())

	c := lab.imageReady(t, "default/mistyped", metav1.ConditionFalse, "NotFound")
	if !strings.Contains(c, fmt.Sprintf("image %q on node-", missing)) {
		t.Errorf("the condition says %q", c)
	}
	if s := lab.get(t, "default/mistyped"); s.Status.State != "Cold" || s.Status.LastWake != nil {
		t.Errorf("the service with a mistyped image is %+v", s.Status)
	}

	e2e.Must(lab.kubectl("", "delete", "wgs", "prefetched", "--wait"))(t)
	for _, n := range lab.Nodes {
		e2e.Eventually(t, n.Name+" lets the image go", func() (bool, string) {
			list := pinned(t, n.ContainerdSocket)
			return !slices.Contains(list, fixed) && !slices.Contains(list, ref), fmt.Sprint(list)
		})
	}
}

// testDigestDuringWake: the digest of a service's image, which becomes known during the first wake, replaces no pod,
// whichever comes first.
func testDigestDuringWake(t *testing.T) {
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			key := fmt.Sprintf("default/digest-%d", i)
			lab.apply(t, manifest(key, "idleTimeout: 600"))
			e2e.MustAsk(t, lab.client, lab.address(t, key))
			woken := lab.pods(t, key)
			lab.waitDeployment(t, key, handedOver)
			e2e.Eventually(t, key+": the digest is known", func() (bool, string) {
				s, err := lab.find(key)
				return err == nil && len(s.Status.ImageDigests) == 1, fmt.Sprintf("%v; %+v", err, s.Status)
			})
			if now := lab.pods(t, key); len(woken) != 1 || !slices.Equal(now, woken) {
				t.Errorf("pods %v became %v", woken, now)
			}
		})
	}
}

// imageReady waits for the condition ImageReady of a service, and returns its message.
func (c *cluster) imageReady(t *testing.T, key string, status metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprintf("%s: ImageReady is %s, %s", key, status, reason), func() (bool, string) {
		s, err := c.find(key)
		if err != nil {
			return false, err.Error()
		}
		is := apimeta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionImageReady)
		if is == nil {
			return false, "no such condition"
		}
		message = is.Message
		return is.Status == status && is.Reason == reason, fmt.Sprintf("%+v", is)
	})
	return message
}

// fixedImage waits until the digest of a service's image is in its Deployment, and returns the image with the digest.
func (c *cluster) fixedImage(t *testing.T, key string) (image string) {
	t.Helper()
	e2e.Eventually(t, key+" names the digest", func() (bool, string) {
		s, err := c.find(key)
		if err != nil || len(s.Status.ImageDigests) != 1 {
			return false, fmt.Sprint(err)
		}
		d := s.Status.ImageDigests[0]
		image, err = c.kubectl("", "get", "deployment", s.Name, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		return image == imageref.Fixed(d.Image, d.Digest), fmt.Sprint(image, err)
	})
	return image
}

// pinned returns the images that a node's daemon has pinned in its containerd.
func pinned(t *testing.T, socket string) []string {
	t.Helper()
	store, err := cri.OpenImages(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var list []string
	e2e.Eventually(t, "containerd lists its pinned images", func() (bool, string) {
		list, err = store.Pinned(t.Context())
		return err == nil, fmt.Sprint(err)
	})
	return list
}

// pushLarge pushes an image that was never there before: the tests' server and random bytes. It returns its name.
func pushLarge(t *testing.T) string {
	t.Helper()
	return "registry.cluster.local:5000/" + pushLargeAt(t)
}

// pushLargeAt is pushLarge, and returns the name without the registry.
func pushLargeAt(t *testing.T) string {
	t.Helper()
	server := e2e.Must(os.ReadFile(filepath.Join(folder, "server")))(t)
	filler := make([]byte, largeImage)
	rand.Read(filler)
	img := e2e.Must(image.Build(image.Spec{Entrypoint: []string{"/server"}, Files: map[string]image.File{
		"/server": {Data: server, Mode: 0o755}, "/filler": {Data: filler, Mode: 0o644},
	}}))(t)
	path := fmt.Sprintf("large:t%x", filler[:8])
	to := e2e.Must(name.ParseReference(lab.Registry.PushAddress+"/"+path, name.Insecure))(t)
	if err := remote.Write(to, img, remote.WithContext(context.Background())); err != nil {
		t.Fatal(err)
	}
	return path
}
