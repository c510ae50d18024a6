// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// lostWriter is a service whose pod writes to a volume, on a node that is going to die.
type lostWriter struct {
	key, addr string
	home      *node
	first     e2e.Answer // of its pod there
	pod       string     // the UID of that
}

// startWriter starts the service. Its pod may run on any node, and prefers home.
func (c *cluster) startWriter(t *testing.T, home *node) *lostWriter {
	t.Helper()
	const key, folder = "default/lost-writer", "/tmp/wangell-lost-writer"
	spec := fmt.Sprintf("idleTimeout: 600\nwakeTimeout: 600\ntemplate:\n  spec:\n"+
		"    affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference:\n"+
		"      {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}}]}}\n"+
		"    containers:\n    - name: server\n      image: %q\n      volumeMounts: [{name: shared, mountPath: /data}]\n"+
		"    volumes: [{name: shared, hostPath: {path: %s, type: DirectoryOrCreate}}]\n", home.name, serverImage, folder)
	c.apply(t, strings.Replace(manifest(key, spec), "  image: "+serverImage+"\n", "", 1))
	w := &lostWriter{key: key, addr: c.address(t, key), home: home}
	w.first = e2e.MustAsk(t, c.client, w.addr)
	where := w.pods(t)
	if w.pod = strings.TrimSuffix(where, " on "+home.name); w.pod == where || strings.Contains(w.pod, " ") {
		t.Fatalf("the writer's pods: %q, want one on %s", where, home.name)
	}
	return w
}

// pods returns the UIDs of the service's pods and their nodes.
func (w *lostWriter) pods(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(e2e.Must(lab.kubectl("", "get", "pods", "-n", "default", "-l",
		"wangell.loutres.me/service=lost-writer", "-o",
		`jsonpath={range .items[*]}{.metadata.uid} on {.spec.nodeName}{"\n"}{end}`))(t))
}

// goesOn checks the service after its node has died: it tells what it waits for, no other pod starts, and its client is
// answered once somebody has told Kubernetes that the machine is off.
func (w *lostWriter) goesOn(t *testing.T) {
	t.Helper()
	e2e.Eventually(t, "the wait is told", func() (bool, string) {
		s, err := lab.find(w.key)
		if err != nil {
			return false, err.Error()
		}
		for _, c := range s.Status.Conditions {
			if c.Type == "Stalled" && c.Reason == "NodeLost" && strings.Contains(c.Message, w.home.name) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", s.Status)
	})
	client := make(chan error, 1)
	go func() {
		a, err := e2e.Ask(lab.client, w.addr)
		if err == nil && a.Instance == w.first.Instance {
			err = fmt.Errorf("the pod of the dead node answers")
		}
		client <- err
	}()
	e2e.Must(lab.kubectl("", "wait", "node", w.home.name, "--for=condition=Ready=Unknown",
		"--timeout="+e2e.Patience.String()))(t)
	if is := w.pods(t); is != w.pod+" on "+w.home.name {
		t.Errorf("pods while the node is not ready: %q", is)
	}
	e2e.Eventually(t, "an Event", func() (bool, string) {
		reasons, err := lab.kubectl("", "get", "events.events.k8s.io", "-n", "default", "-o",
			`jsonpath={range .items[?(@.regarding.name=="lost-writer")]}{.reason} {end}`)
		return err == nil && slices.Contains(strings.Fields(reasons), "NodeLost"), reasons
	})
	select {
	case err := <-client:
		t.Errorf("the client did not wait: %v", err)
	default:
	}
	e2e.Must(lab.kubectl("", "taint", "node", w.home.name, outOfService+"=nodeshutdown:NoExecute"))(t)
	if err := <-client; err != nil {
		t.Errorf("the client that waited: %v", err)
	}
	if is := w.pods(t); strings.Contains(is, w.pod) || strings.Contains(is, "\n") || strings.Contains(is, w.home.name) {
		t.Errorf("pods after the taint: %q", is)
	}
}

// outOfService is the key of a taint that says that a node is off.
const outOfService = "node.kubernetes.io/out-of-service"
