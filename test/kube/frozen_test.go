// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/test/testutil/e2e"
)

// testFrozen freezes a pod that kubelet probes. Its connections, its probes and people need it again and again, and in
// the end it is evicted.
func testFrozen(t *testing.T) {
	const key, grace = "default/frozen", 3600
	const probe = "{tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 60}"
	lab.apply(t, frozenManifest(key, grace,
		"      stdin: true\n      readinessProbe: "+probe+"\n      livenessProbe: "+probe))
	address := lab.address(t, key)
	k := e2e.MustConverse(t, lab.client, address)
	k.MustEcho(t, "awake")
	lab.untilFrozen(t, key)

	lab.untilReserved(t, key, "1m 8Mi", func() {})
	lab.untilReserved(t, key, "50m 40Mi", func() { k.MustEcho(t, "an open connection thaws it") })
	lab.untilFrozen(t, key)
	other := e2e.MustConverse(t, lab.client, address)
	other.MustEcho(t, "and so does a new one")
	if err := other.End(); err != nil {
		t.Error(err)
	}

	lab.untilFrozen(t, key)
	pod := lab.pod(t, key)
	ctx, cancel := context.WithTimeout(t.Context(), e2e.Patience)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(lab.Bin, "kubectl"), "--kubeconfig", lab.Kubeconfig, "exec", "-n",
		pod.Namespace, pod.Name, "--", "/server")
	if out, err := run.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("address already in use")) {
		t.Errorf("a command in a frozen pod: %s, %v", out, err)
	}
	lab.untilFrozen(t, key)
	forwarded := lab.forward(t, pod.Namespace, pod.Name)
	for _, line := range []string{"kubectl port-forward thaws it", "and so does an open connection through it"} {
		forwarded.MustEcho(t, line)
		lab.untilFrozen(t, key)
	}
	typed := lab.attach(t, pod.Namespace, pod.Name)
	for _, line := range []string{"kubectl attach thaws it", "and again"} {
		lab.untilFrozen(t, key)
		typed(line)
	}
	lab.untilFrozen(t, key)
	var now corev1.Pod
	if err := lab.read(pod.Namespace+"/"+pod.Name, &now); err != nil {
		t.Fatal(err)
	}
	if c := now.Status.ContainerStatuses[0]; c.RestartCount > 0 || !c.Ready {
		t.Errorf("probes of a frozen pod fail: %+v", c)
	}
	table := e2e.Must(lab.kubectl("", "get", "wgs", "-n", "default", "frozen"))(t)
	if !strings.Contains(table, "Frozen") && !strings.Contains(table, "Warm") {
		t.Errorf("kubectl get wgs\n%s", table)
	}

	// As kubectl drain does it. Were it not thawed, it would be there until its grace period is over.
	lab.untilFrozen(t, key)
	if err := lab.call(func(ctx context.Context) error {
		return lab.api.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})
	}); err != nil {
		t.Fatal(err)
	}
	e2e.Must(lab.kubectl("", "wait", "--for=delete", "-n", pod.Namespace, "pod/"+pod.Name,
		"--timeout="+e2e.Patience.String()))(t)
}

// frozenManifest is a service whose pod is frozen after a second, and has requests. grace is its grace period in
// seconds, and container holds further fields of its container.
func frozenManifest(key string, grace int, container string) string {
	doc := manifest(key, fmt.Sprintf("idleTimeout: 600\nsleep: {freezeAfter: 1s}\n"+
		"template:\n  spec:\n    terminationGracePeriodSeconds: %d\n    containers:\n    - name: server\n      image: %s\n"+
		"      resources: {requests: {cpu: 50m, memory: 40Mi}}\n      env: [{name: MODE, value: lines}]\n%s",
		grace, serverImage, container))
	return strings.Replace(doc, "  image: "+serverImage+"\n", "", 1)
}

// attach runs kubectl attach --stdin in a pod. The returned function types a line, and waits until the server in the
// pod has read it.
func (c *cluster) attach(t *testing.T, namespace, pod string) (typed func(line string)) {
	t.Helper()
	b := c.kubectlInBackground(t, "attach", "-n", namespace, "--stdin", "--quiet", pod)
	return func(line string) {
		t.Helper()
		if _, err := fmt.Fprintln(b.stdin, line); err != nil {
			t.Fatal(err)
		}
		if got, want := b.line(t), fmt.Sprintf("server: read %q", line+"\n"); got != want {
			t.Fatalf("kubectl attach: %q, want %q", got, want)
		}
	}
}

// kubectlInBackground starts kubectl as the administrator.
func (c *cluster) kubectlInBackground(t *testing.T, args ...string) *background {
	t.Helper()
	return inBackground(t, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"),
			append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	})
}

// forward returns a connection to the server in a pod, through kubectl port-forward.
func (c *cluster) forward(t *testing.T, namespace, pod string) *e2e.Conversation {
	t.Helper()
	line := c.kubectlInBackground(t, "port-forward", "-n", namespace, "pod/"+pod, ":8080").line(t)
	address := forwardedFrom.FindString(line)
	if address == "" {
		t.Fatalf("kubectl port-forward: %q", line)
	}
	conn, err := net.DialTimeout("tcp", address, e2e.Patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(e2e.Patience)); err != nil {
		t.Fatal(err)
	}
	k, err := e2e.Greeted(conn.(*net.TCPConn))
	if err != nil {
		t.Fatalf("through kubectl port-forward: %v", err)
	}
	return k
}

// forwardedFrom is the address in kubectl's message "Forwarding from 127.0.0.1:PORT -> 8080".
var forwardedFrom = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// pod returns the only pod of a service.
func (c *cluster) pod(t *testing.T, key string) corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := c.list(key, &pods); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%s: %v, want one pod, got %d", key, err, len(pods.Items))
	}
	return pods.Items[0]
}

// untilFrozen waits until the processes of the only pod of a service stand still.
func (c *cluster) untilFrozen(t *testing.T, key string) {
	t.Helper()
	c.waitState(t, key, "Frozen")
	uid := string(c.pod(t, key).UID)
	e2e.Eventually(t, key+": processes that stand still", func() (bool, string) {
		pid, err := processOf(uid, "server")
		if err != nil {
			return false, err.Error()
		}
		cgroup, err := freezerOf(pid)
		if err != nil {
			return false, err.Error()
		}
		frozen, err := freezer.New("").Frozen(cgroup)
		return frozen, fmt.Sprint(cgroup, " ", err)
	})
}

// untilReserved waits until the node of the only pod of a service has reserved what is wanted for it: the scheduler
// counts the largest of what the pod requests, what kubelet has allocated, and what the container has. poll is called
// before each look.
func (c *cluster) untilReserved(t *testing.T, key, want string, poll func()) {
	t.Helper()
	e2e.Eventually(t, key+": reserved "+want, func() (bool, string) {
		poll()
		pod := c.pod(t, key)
		all := []corev1.ResourceList{pod.Spec.Containers[0].Resources.Requests}
		for _, s := range pod.Status.ContainerStatuses {
			all = append(all, s.AllocatedResources)
			if s.Resources != nil {
				all = append(all, s.Resources.Requests)
			}
		}
		same := len(all) == 3
		for _, r := range all {
			same = same && r.Cpu().String()+" "+r.Memory().String() == want
		}
		return same, fmt.Sprint(all, pod.Status.Conditions)
	})
}

// freezerOf returns the cgroup of a pod that one of its processes is in, in the hierarchy that freezes.
func freezerOf(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	found := ""
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[1] == "freezer" || parts[1] == "" && found == "") {
			found = path.Dir(parts[2])
		}
	}
	return found, nil
}
