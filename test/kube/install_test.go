// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/programimage"
)

// Names of objects of the chart, as release "wangell".
const (
	productNamespace = "wangell-system"
	leaseName        = "wangell"
	daemonName       = "wangell-daemon"
	daemonLabel      = "app.kubernetes.io/component=daemon"
)

// Images of the tests' own server, as nodes name them. VERSION of the second is "of the image"; the third is that of
// the minimal manifest.
const (
	serverImage  = "registry.cluster.local:5000/server:v1"
	otherImage   = "registry.cluster.local:5000/server:v2"
	exampleImage = "registry.loutres.me/helloworld-go:latest"
)

// Tags of the product's images, of this tree and of the previous commit. They differ in each run, as nodes keep what
// they have pulled.
var (
	thisTag   = fmt.Sprintf("this-%d", time.Now().UnixNano())
	beforeTag = "before" + thisTag[len("this"):]
)

// installed is the tag of the product that is installed, with the chart's values that all tests share; empty if none.
var installed struct {
	sync.Mutex
	tag string
	err error // of installThis, which is not tried again
}

// pushImages builds and pushes the images of this tree, and labels the node for lazy pulls.
func pushImages() error {
	if err := pushServers(); err != nil {
		return err
	}
	if err := pushEnvoy(); err != nil {
		return err
	}
	if err := pushProduct(root, thisTag); err != nil {
		return err
	}
	// The controllers read the labels when the node's daemon connects.
	_, err := lab.kubectl("", "label", "node", lab.lazyNode(), v1alpha1.LabelLazy+"=true", "--overwrite")
	return err
}

// installThis installs chart and image of this tree unless they are installed.
func installThis() error {
	installed.Lock()
	defer installed.Unlock()
	if installed.tag != thisTag && installed.err == nil {
		installed.err = helm(root, thisTag)
		installed.tag = thisTag
	}
	return installed.err
}

// installBefore installs chart and image of the previous commit, or of this tree if there is no previous one.
func installBefore() error {
	installed.Lock()
	defer installed.Unlock()
	before, err := commitBefore()
	if err != nil {
		return err
	}
	if installed.tag != "" {
		if err := uninstall(); err != nil {
			return err
		}
	}
	if before == "" {
		installed.tag = thisTag
		return helm(root, thisTag)
	}
	if err := pushProduct(before, beforeTag); err != nil {
		return err
	}
	installed.tag = beforeTag
	return helm(before, beforeTag)
}

// commitBefore unpacks the tree of the previous commit and returns its folder; empty if there is none, or if it has no
// chart.
func commitBefore() (string, error) {
	if err := exec.Command("git", "-C", root, "cat-file", "-e", "HEAD~1:deploy/chart/Chart.yaml").Run(); err != nil {
		return "", nil
	}
	dir := filepath.Join(folder, "before")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tree, err := exec.Command("git", "-C", root, "archive", "HEAD~1").Output()
	if err != nil {
		return "", fmt.Errorf("git archive HEAD~1: %w", err)
	}
	tar := exec.Command("tar", "-x", "-C", dir)
	tar.Stdin = bytes.NewReader(tree)
	if out, err := tar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack HEAD~1: %w: %s", err, out)
	}
	return dir, nil
}

// pushProduct builds and pushes the product's image from a source tree.
func pushProduct(src, tag string) error {
	c := exec.Command("go", "run", "./hack/image", "--version", tag, "--name", lab.Registry.PushAddress+"/wangell",
		"--platforms", "linux/amd64", "--push", "--plain-http")
	c.Dir = src
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("image of %s: %w: %s", src, err, out)
	}
	return nil
}

// pushServers builds and pushes the images of the tests' own server.
func pushServers() error {
	server := filepath.Join(folder, "server")
	build := exec.Command("go", "build", "-o", server, "wangell.loutres.me/test/e2e/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests' server: %w: %s", err, out)
	}
	for ref, version := range map[string]string{serverImage: "", otherImage: "of the image", exampleImage: "example"} {
		_, path, _ := strings.Cut(ref, "/")
		if err := pushProgram(server, path, "VERSION="+version); err != nil {
			return err
		}
	}
	return nil
}

// pushEnvoy pushes an image of Envoy.
func pushEnvoy() error {
	program, err := envoytest.Fetch(context.Background())
	if err != nil {
		return err
	}
	img, err := programimage.Build(program, "/usr/local/bin/envoy")
	if err != nil {
		return err
	}
	return pushImage(img, "envoy:"+envoytest.Version())
}

// pushProgram pushes an image with one program to the cluster's registry.
func pushProgram(file, path string, env ...string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	at := "/" + filepath.Base(file)
	img, err := image.Build(image.Spec{Files: map[string]image.File{at: {Data: content, Mode: 0o755}},
		Entrypoint: []string{at}, Env: env})
	if err != nil {
		return err
	}
	return pushImage(img, path)
}

// pushImage pushes an image to the cluster's registry.
func pushImage(img v1.Image, path string) error {
	to, err := name.ParseReference(lab.Registry.PushAddress+"/"+path, name.Insecure)
	if err != nil {
		return err
	}
	if err := remote.Write(to, img, remote.WithContext(context.Background())); err != nil {
		return fmt.Errorf("push %s: %w", path, err)
	}
	return nil
}

// helm installs the chart and image of a source tree, or upgrades to them, with further values.
func helm(src, tag string, values ...string) error {
	args := []string{"upgrade", "--install", "wangell", filepath.Join(src, "deploy/chart"), "--create-namespace",
		"--wait", "--timeout", "10m",
		"--set", "image.repository=" + lab.Registry.Address + "/wangell", "--set", "image.tag=" + tag,
		"--set", "addresses={" + lab.LAN.ServiceAddresses + "}"}
	if src == root {
		values = append(values, "lazy.enabled=true", "daemon.freezing.enabled=true")
	}
	drain := "requests.drainSeconds=5"
	if src != root {
		drain = "requests.drainSeconds=4" // so that the upgrade replaces Envoy as well
	}
	values = append(values, "requests.enabled=true", "requests.image.repository="+lab.Registry.Address+"/envoy",
		"requests.image.tag="+envoytest.Version(), "requests.image.digest=", drain)
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return helmCommand(src, args...)
}

func helmCommand(src string, args ...string) error {
	c := exec.Command(filepath.Join(src, "hack/helm.sh"),
		append(args, "--namespace", productNamespace, "--kubeconfig", lab.Kubeconfig)...)
	if out, err := c.CombinedOutput(); err != nil {
		pods, _ := lab.kubectl("", "get", "pods", "-n", productNamespace, "-o", "wide")
		logs, _ := lab.kubectl("", "logs", "-n", productNamespace, "-l", "app.kubernetes.io/name=wangell", "--all-containers",
			"--tail=20", "--prefix")
		return fmt.Errorf("helm %s: %w: %s\n%s\n%s", args[0], err, out, pods, logs)
	}
	return nil
}

// uninstall removes the product. Nothing of the gate may be left on any node.
func uninstall() error {
	err := helmCommand(root, "uninstall", "wangell", "--wait", "--cascade", "foreground", "--ignore-not-found")
	deadline := time.Now().Add(e2e.Patience)
	for _, n := range lab.nodes {
		for {
			out, e := n.ns.Command(context.Background(), "ip", "link", "show", "wangell0").CombinedOutput()
			if e != nil {
				break
			}
			if time.Now().After(deadline) {
				err = errors.Join(err, fmt.Errorf("%s: uninstalled, and wangell0 is still there: %s", n.name, out))
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return err
}

// testUninstall removes the product while a revision has a finalizer and a frozen pod has given its requests back.
func testUninstall(t *testing.T) {
	const frozen, revision = "removed/frozen", "removed/v1"
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: removed}\n")
	// What pods need of their namespace; testNewNamespace wakes a service without it.
	for _, object := range []string{"serviceaccount/default", "configmap/kube-root-ca.crt"} {
		e2e.Eventually(t, object, func() (bool, string) {
			out, err := lab.kubectl("", "get", "-n", "removed", object)
			return err == nil, fmt.Sprint(out, err)
		})
	}
	lab.apply(t, `
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: shop, namespace: removed}
spec:
  port: 80
  balancing: {level: Request}
  traffic: [{revision: v1, percent: 100}]
---
`+manifest(revision, "balancing: {level: Request}")+"---\n"+frozenManifest(frozen, 30, ""))
	e2e.MustConverse(t, lab.client, lab.address(t, frozen)).MustEcho(t, "awake")
	lab.untilFrozen(t, frozen)
	lab.untilReserved(t, frozen, "1m 8Mi", func() {})
	var s v1alpha1.WangellService
	e2e.Eventually(t, revision+" has a finalizer", func() (bool, string) {
		err := lab.read(revision, &s)
		return slices.Contains(s.Finalizers, v1alpha1.FinalizerRevision), fmt.Sprint(s.Finalizers, err)
	})
	installed.Lock()
	installed.tag = ""
	installed.Unlock()
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	lab.untilReserved(t, frozen, "50m 40Mi", func() {})
	if pod := lab.pod(t, frozen); reservation.Noted(&pod) {
		t.Errorf("annotations %v", pod.Annotations)
	}
	if err := lab.read(revision, &s); err != nil || len(s.Finalizers) > 0 {
		t.Errorf("finalizers %v, %v", s.Finalizers, err)
	}
	for _, left := range []string{"jobs", "pods"} {
		got := e2e.Must(lab.kubectl("", "get", left, "-n", productNamespace, "-o", "name"))(t)
		if got != "" {
			t.Errorf("left in %s: %s", productNamespace, got)
		}
	}
	e2e.Must(lab.kubectl("", "delete", "wgs", "--all", "-n", "removed", "--timeout="+e2e.Patience.String()))(t)
}

// testUpgrade upgrades from the previous commit while connections are open and new ones are made.
func testUpgrade(t *testing.T) {
	const key = "default/upgraded"
	if err := installBefore(); err != nil {
		t.Fatal(err)
	}
	lab.apply(t, manifest(key, "idleTimeout: 600"))
	addr := lab.address(t, key)
	e2e.MustAsk(t, lab.client, addr)
	held := e2e.HTTPClient(lab.client, true) // one kept connection
	first, err := e2e.AskBy(held, addr)
	if err != nil {
		t.Fatal(err)
	}
	outside, inside := keepAsking(t, lab.client, addr), keepAsking(t, lab.nodes[1].ns, addr)
	// As docs/operations/cluster.md says: the definition comes first, as helm leaves it as it is.
	e2e.Must(lab.kubectl("", "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(root, "deploy/crd")))(t)
	if err := installThis(); err != nil {
		t.Fatal(err)
	}
	last, err := e2e.AskBy(held, addr)
	if err != nil {
		t.Errorf("the connection that was open during the upgrade: %v", err)
	}
	if first.Client != last.Client {
		t.Errorf("the connection was made anew: %s, then %s", first.Client, last.Client)
	}
	outside.Stop(t)
	inside.Stop(t)
	lab.sleep(t, key)
	e2e.MustAsk(t, lab.client, addr)
}
