// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/test/testutil/e2e"
)

func TestImagesArePulledAndRemovedByHand(t *testing.T) {
	l := newLab(t, 2)
	host := l.serveRegistry(t, l.Clients[1])
	image := fmt.Sprintf("%s/team/byhand:v1", host)
	push(t, l.Clients[1], image, serverImage)
	digest, err := serverImage.Digest()
	if err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) []string {
		return append(append([]string{"image"}, args...), "--state-dir", l.state, "--containerd", "own")
	}
	l.startWith(t, manifest(service{name: "hello", image: image, more: "imagePullPolicy: Never"}), "-f", "-")
	var pulled []containerd.Pulled
	out := l.must(t, command("pull", "hello", "--insecure-registry", host, "-o", "json")...)
	if err := decode(out, &pulled); err != nil || len(pulled) != 1 || pulled[0].Name != image ||
		pulled[0].Digest.String() != digest.String() {
		t.Fatalf("pulled %+v: %v; want %s %s", pulled, err, image, digest)
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "hello")) // it is not pulled for the wake: the policy is Never
	fails := func(want string, args ...string) {
		t.Helper()
		if _, err := l.wangell(command(args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("image %v: %v, want %q", args, err, want)
		}
	}
	fails("service default/hello has it", "rm", image)
	fails("not found in registry (pull 404)", "pull", host+"/team/missing:v1", "--insecure-registry", host)
	fails(`service "nobody": not found`, "pull", "nobody")
	fails("name an image", "rm")
	l.sleep(t, "hello")
	if out := l.must(t, command("rm", "--force", image)...); out != "removed "+image+"\n" {
		t.Errorf("rm --force: %q", out)
	}
	if out := l.must(t, command("ls")...); strings.Contains(out, "byhand") {
		t.Errorf("it is there after rm:\n%s", out)
	}
	fails("not on this machine", "rm", image)
}
