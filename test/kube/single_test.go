// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// testSingleWriter deletes and changes the pod of a service that writes to a volume, and puts it to sleep, while
// clients ask. The next pod comes only once the object of the one before it is gone, and the Deployment stays at
// rest.
func testSingleWriter(t *testing.T) {
	const key, folder = "default/writer", "/tmp/wangell-writer"
	writer := func(version string) string {
		return manifest(key, "idleTimeout: 600\nenv: [{name: VERSION, value: "+version+"}]\n"+
			"volumes:\n  - {name: shared, hostPath: {path: "+folder+", type: DirectoryOrCreate}}\n"+
			"volumeMounts:\n  - {name: shared, mountPath: /data}\n")
	}
	lab.apply(t, writer("one"))
	addr := lab.address(t, key)
	lab.waitCold(t, key)
	uid := func() string {
		t.Helper()
		return e2e.Must(lab.kubectl("", "get", "pods", "-n", "default", "-l", "wangell.loutres.me/service=writer",
			"-o", "jsonpath={.items[*].metadata.name} {.items[*].metadata.uid}"))(t)
	}
	served := func(version string) string {
		t.Helper()
		if got := e2e.MustAsk(t, lab.client, addr); got.Version != version {
			t.Errorf("version %q answers, want %q", got.Version, version)
		}
		is := uid()
		if name, _, _ := strings.Cut(is, " "); name != "writer-single" || len(strings.Fields(is)) != 2 {
			t.Errorf("pods: %s", is)
		}
		if d := lab.deployment(t, key); d != "paused=true wants=0 has= sets=0" {
			t.Errorf("Deployment: %s", d)
		}
		return is
	}
	first := served("one")
	e2e.Must(lab.kubectl("", "delete", "pod", "-n", "default", "writer-single", "--wait=false"))(t)
	second := served("one") // the client waits for the end of the first pod
	if second == first {
		e2e.Eventually(t, "another pod", func() (bool, string) { second = served("one"); return second != first, second })
	}
	lab.sleep(t, key)
	third := served("one")
	if third == second {
		t.Error("it did not sleep")
	}
	e2e.Must(lab.kubectl(writer("two"), "apply", "-f", "-"))(t)
	e2e.Eventually(t, "version two", func() (bool, string) {
		got, err := e2e.Ask(lab.client, addr)
		return err == nil && got.Version == "two", fmt.Sprint(got, err)
	})
	if now := served("two"); now == third {
		t.Error("the pod was not replaced")
	}
	// kubectl scale of the Deployment starts nothing.
	e2e.Must(lab.kubectl("", "scale", "deployment", "-n", "default", "writer", "--replicas=2"))(t)
	lab.waitDeployment(t, key, "paused=true wants=0 has= sets=0")
	served("two")
}
