// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/e2e"
)

// mirrorOfNode is where a node's containerd finds the mirror, by the chart's defaults.
var mirrorOfNode = netip.MustParseAddrPort("127.0.0.1:7949")

// testPeers: with peers, an image that all nodes are to have leaves the registry once, and the service serves.
func testPeers(t *testing.T) {
	const key = "default/shared"
	registry, _, _ := strings.Cut(serverImage, "/")
	for _, n := range lab.Nodes {
		// The cluster's own default would stay, as everybody's does.
		setAside(t, registriesOf(n, "_default/hosts.toml"), nil)
		// What docs/images/peers.md says of a registry with settings of its own.
		own := registriesOf(n, registry+"/hosts.toml")
		server, hosts, found := strings.Cut(string(e2e.Must(os.ReadFile(own))(t)), "\n")
		if !found || !strings.HasPrefix(server, "server = ") {
			t.Fatalf("%s begins with %q", own, server)
		}
		setAside(t, own, []byte(server+"\n"+peer.HostsEntry(mirrorOfNode)+hosts))
	}
	if err := helm(root, thisTag, "daemon.peers.enabled=true"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := helm(root, thisTag); err != nil {
			t.Error(err)
		}
	})
	// helm does not wait for the last daemon.
	e2e.Must(lab.kubectl("", "rollout", "status", "-n", productNamespace, "daemonset/"+daemonName, "--timeout=2m"))(t)
	for _, n := range lab.Nodes {
		text := string(e2e.Must(os.ReadFile(registriesOf(n, "_default/hosts.toml")))(t))
		if !strings.HasSuffix(text, peer.HostsEntry(mirrorOfNode)) {
			t.Errorf("%s: containerd's default for registries is %q", n.Name, text)
		}
	}

	ref := pushLarge(t)
	lab.apply(t, strings.Replace(manifest(key, "imagePull: {nodes: All}"), serverImage, ref, 1))
	lab.imageReady(t, key, metav1.ConditionTrue, "Present")
	fixed := lab.fixedImage(t, key)
	for _, n := range lab.Nodes {
		e2e.Eventually(t, n.Name+" has pinned "+fixed, func() (bool, string) {
			list := pinned(t, n.ContainerdSocket)
			return slices.Contains(list, fixed), fmt.Sprint(list)
		})
	}
	wantShared(t, ref, float64(len(lab.nodes)-1), 0, 0)
	e2e.MustAsk(t, lab.client, lab.address(t, key))
	e2e.Must(lab.kubectl("", "delete", "wgs", "shared", "--wait"))(t)
	t.Run("also what kubelet pulls at a wake", testPeersAtWakes)
}

// testPeersAtWakes wakes a service on one node and then one on another, whose image nobody has pulled before.
func testPeersAtWakes(t *testing.T) {
	ref := pushLarge(t)
	peersBefore, registryBefore := mirrored(t)
	for i, n := range lab.nodes[:2] {
		key := fmt.Sprintf("default/shared-%d", i)
		doc := strings.ReplaceAll(on(n, key), serverImage, ref)
		lab.apply(t, strings.Replace(doc, "spec:\n", "spec:\n  imagePull: {when: Wake}\n", 1))
		e2e.MustAsk(t, lab.client, lab.address(t, key))
	}
	wantShared(t, ref, 1, peersBefore, registryBefore)
}

// wantShared checks that the registry has sent an image at most once and peers have sent it a number of times, since
// the mirrors had received so many bytes.
func wantShared(t *testing.T, ref string, times, peersBefore, registryBefore float64) {
	t.Helper()
	fromPeers, fromRegistry := mirrored(t)
	fromPeers, fromRegistry = fromPeers-peersBefore, fromRegistry-registryBefore
	size := sizeOf(t, ref)
	if fromPeers < 0.9*times*size || fromRegistry > 1.1*size {
		t.Errorf("%.1f MB came from peers and %.1f MB from the registry: want each byte from it once, of %.1f MB",
			fromPeers/1e6, fromRegistry/1e6, size/1e6)
		t.Log(lab.logs(time.Now().Add(-time.Minute))) // before the cleanup ends the daemons
	}
}

// mirrored returns the bytes of images that the mirrors of all nodes have received from each source.
func mirrored(t *testing.T) (fromPeers, fromRegistry float64) {
	t.Helper()
	for _, n := range lab.nodes {
		p, r := n.mirrored(t, "peer"), n.mirrored(t, "registry")
		t.Logf("%s: %.1f MB from peers, %.1f MB from the registry", n.name, p/1e6, r/1e6)
		fromPeers, fromRegistry = fromPeers+p, fromRegistry+r
	}
	return fromPeers, fromRegistry
}

// sizeOf returns the size in bytes of what a node pulls of an image in the cluster's registry.
func sizeOf(t *testing.T, ref string) float64 {
	t.Helper()
	_, path, _ := strings.Cut(ref, "/")
	at := e2e.Must(name.ParseReference(lab.Registry.PushAddress+"/"+path, name.Insecure))(t)
	img := e2e.Must(remote.Image(at, remote.WithContext(t.Context())))(t)
	manifest := e2e.Must(img.Manifest())(t)
	size := e2e.Must(img.Size())(t) + manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
	}
	return float64(size)
}

// registriesOf returns a file among the settings of registries of a node's containerd.
func registriesOf(n clusterfile.Node, name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root/etc/containerd/certs.d", n.HolderPid), name)
}

// setAside replaces a file until the test ends; without content it is removed.
func setAside(t *testing.T, file string, content []byte) {
	t.Helper()
	before := e2e.Must(os.ReadFile(file))(t)
	t.Cleanup(func() {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	})
	err := os.Remove(file)
	if content != nil {
		err = os.WriteFile(file, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mirrored returns the bytes of images that a node's mirror has received from a source.
func (n *node) mirrored(t *testing.T, source string) float64 {
	t.Helper()
	text := e2e.Must(n.metrics())(t)
	metric := regexp.MustCompile(`(?m)^wangell_image_mirror_received_bytes_total\{source="` + source + `"\} (\S+)$`)
	found := metric.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("%s: no metric of bytes from %s in\n%s", n.name, source, text)
	}
	return e2e.Must(strconv.ParseFloat(found[1], 64))(t)
}
