// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// testFailures wakes services that cannot serve: why is said, long before wakeTimeout, and by those alone who may read
// logs where it is in a log.
func testFailures(t *testing.T) {
	kubectl := buildPlugin(t, lab.Kubeconfig)
	service := func(name string, wakeTimeout int, template string) (key, addr string) {
		key = "default/" + name
		doc := manifest(key, fmt.Sprintf("wakeTimeout: %d\ntemplate:\n  spec:\n    containers:\n", wakeTimeout)+template)
		lab.apply(t, strings.Replace(doc, "  image: "+serverImage+"\n", "", 1))
		return key, lab.address(t, key)
	}
	crash, crashAddr := service("failure-exits", 60, "    - name: server\n      image: "+serverImage+
		"\n      env: [{name: MODE, value: exit}]\n")
	mount, mountAddr := service("failure-mount", 60, "    - name: server\n      image: "+serverImage+
		"\n      volumeMounts: [{name: conf, mountPath: /conf}]\n"+
		"    volumes: [{name: conf, configMap: {name: there-is-none}}]\n")

	listens, listensAddr := service("failure-listens", 30, "    - name: server\n      image: "+serverImage+
		"\n      env: [{name: BIND, value: 127.0.0.1}]\n")

	begin := time.Now()
	for _, addr := range []string{crashAddr, mountAddr} {
		if a, err := e2e.Ask(lab.client, addr); err == nil {
			t.Errorf("%s answers: %+v", addr, a)
		}
	}
	t.Logf("both clients were refused within %v", time.Since(begin))
	lab.message(t, crash, "process exited with code", true)
	lab.message(t, mount, `configmap "there-is-none" not found`, true)
	kubectl.says(t, true, "why default/failure-mount", `configmap "there-is-none" not found`)

	e2e.Eventually(t, "the log of the program is kept", func() (bool, string) {
		out, ok := kubectl.run(t, "logs", crash)
		return ok && strings.Contains(out, "/etc/app.conf is missing"), out
	})
	kubectl.says(t, true, "why "+crash, "The end of its output:", "/etc/app.conf is missing")
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = e2e.Ask(lab.client, listensAddr) // it is refused after wakeTimeout
	}()
	const where = "listens on 127.0.0.1:8080, not on an address that clients reach"
	e2e.Eventually(t, "what listens is said while its client waits", func() (bool, string) {
		s := lab.get(t, listens)
		return s.Status.State == "Waking" && strings.Contains(s.Status.Message, where), s.Status.Message
	})
	kubectl.says(t, true, "why "+listens, where)
	<-asked
	lab.message(t, listens, where, true)
	if s := lab.get(t, crash); strings.Contains(s.Status.Message, "/etc/app.conf is missing") {
		t.Errorf("the status has the log: %s", s.Status.Message)
	}
	if events := lab.eventsOf(t, crash); strings.Contains(events, "/etc/app.conf is missing") {
		t.Errorf("Events have the log: %s", events)
	}
}
