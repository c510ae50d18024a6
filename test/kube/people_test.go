// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// plugin runs 'kubectl wangell' with a kubeconfig.
type plugin struct {
	path       string // folder of kubectl-wangell
	kubeconfig string
}

// buildPlugin builds the plugin, for a kubeconfig.
func buildPlugin(t *testing.T, kubeconfig string) plugin {
	t.Helper()
	p := plugin{path: t.TempDir(), kubeconfig: kubeconfig}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(p.path, "kubectl-wangell"),
		"wangell.loutres.me/cmd/kubectl-wangell")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v: %s", err, out)
	}
	return p
}

// run returns what the plugin prints, its errors included, and whether it succeeded.
func (p plugin) run(t *testing.T, args ...string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), e2e.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(lab.Bin, "kubectl"), append([]string{"wangell"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "PATH="+p.path+":"+os.Getenv("PATH"))
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	return both.String(), err == nil
}

// says fails the test unless the plugin succeeds, or not, and prints all words.
func (p plugin) says(t *testing.T, succeeds bool, args string, words ...string) string {
	t.Helper()
	out, ok := p.run(t, strings.Fields(args)...)
	if ok != succeeds {
		t.Errorf("kubectl wangell %s: success %v, want %v:\n%s", args, ok, succeeds, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("kubectl wangell %s: no %q in\n%s", args, w, out)
		}
	}
	return out
}

// as returns the plugin with a token instead of the administrator's credentials.
func (p plugin) as(t *testing.T, name, token string) plugin {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	config := map[string]any{}
	out := e2e.Must(lab.kubectl("", "--kubeconfig", p.kubeconfig, "config", "view", "--raw", "--minify", "--flatten",
		"-o", "json"))(t)
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		t.Fatal(err)
	}
	users := config["users"].([]any)
	users[0].(map[string]any)["user"] = map[string]any{"token": token}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return plugin{path: p.path, kubeconfig: file}
}

// People are two service accounts of the namespace people: ann may reach the controller and view that namespace, and
// eve may only view it. Another namespace has a service, too.
const people = `
apiVersion: v1
kind: Namespace
metadata: {name: people}
---
apiVersion: v1
kind: Namespace
metadata: {name: strangers}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ann, namespace: people}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: eve, namespace: people}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewers, namespace: people}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: ann, namespace: people}, {kind: ServiceAccount, name: eve, namespace: people}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: people-reach, namespace: wangell-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: wangell-api}
subjects: [{kind: ServiceAccount, name: ann, namespace: people}]
`

// testPeople runs the commands of the plugin as the administrator, who has a client certificate, and as a user of one
// namespace, who has a token.
func testPeople(t *testing.T) {
	admin := buildPlugin(t, lab.Kubeconfig)
	lab.apply(t, people)
	const key, other = "people/hello", "strangers/hello"
	lab.apply(t, manifest(key, "idleTimeout: 600"))
	lab.apply(t, manifest(other, "idleTimeout: 600"))
	e2e.MustAsk(t, lab.client, lab.address(t, key))
	lab.address(t, other)
	ann := admin.as(t, "ann", strings.TrimSpace(e2e.Must(lab.kubectl("", "create", "token", "-n", "people", "ann"))(t)))
	eve := admin.as(t, "eve", strings.TrimSpace(e2e.Must(lab.kubectl("", "create", "token", "-n", "people", "eve"))(t)))

	// The administrator sees and does everything.
	admin.says(t, true, "doctor", "✓ leader", "✓ API for people", "✓ definition")
	admin.says(t, true, "ps -A", key, other, "Warm", "Cold")
	if out := admin.says(t, true, "ps -n people", key); strings.Contains(out, other) {
		t.Errorf("-n people shows\n%s", out)
	}
	admin.says(t, true, "why hello -n people", "people/hello: Warm", "It is awake: 1 of 1 pods serve")
	admin.says(t, true, "wakes hello -n people", "listening")
	admin.says(t, true, "logs hello -n people")
	admin.says(t, false, "why nothing -n people", `service "people/nothing": not found`)
	admin.says(t, true, "__complete why -n people h", "hello")
	admin.says(t, false, "ps --as ann", "--as")

	// Ann sees her namespace, whatever controller of the two answers.
	for range 4 {
		if out := ann.says(t, true, "ps -A", key, "Warm"); strings.Contains(out, other) {
			t.Errorf("a user of one namespace sees\n%s", out)
		}
	}
	if out := ann.says(t, true, "ps -A -o json", `"people"`); strings.Contains(out, "strangers") {
		t.Errorf("a user of one namespace sees\n%s", out)
	}
	ann.says(t, true, "top -n people --count 1 --interval 200ms", key)
	ann.says(t, true, "why hello -n people", "It is awake")
	ann.says(t, true, "wakes -A", key)
	ann.says(t, true, "logs hello -n people")
	ann.says(t, false, "ps -n strangers", `cannot list wangellservices.wangell.loutres.me in the namespace "strangers"`)
	ann.says(t, false, "why strangers/hello", "cannot list wangellservices")
	ann.says(t, false, "sleep hello -n people", "cannot put services to sleep")
	ann.says(t, false, "wake hello -n people", "cannot wake services")
	lab.waitState(t, key, "Warm")

	// The right to see services is not enough to reach the controller, and a wrong or missing token is refused.
	eve.says(t, false, "ps -n people", "you may not reach the controller", "api.users")
	admin.as(t, "stolen", "stolen").says(t, false, "ps -n people", "does not accept the credentials")
	admin.as(t, "missing", "").says(t, false, "ps -n people", "you may not reach the controller")

	// A token that is no longer valid ends access within seconds.
	e2e.Must(lab.kubectl("", "delete", "serviceaccount", "-n", "people", "ann"))(t)
	e2e.Eventually(t, "the deleted account is refused", func() (bool, string) {
		out, ok := ann.run(t, "ps", "-n", "people")
		return !ok, out
	})

	begin := time.Now()
	admin.says(t, true, "sleep hello -n people", "people/hello sleeps")
	t.Logf("sleep took %s", time.Since(begin))
	lab.waitState(t, key, "Cold")
	admin.says(t, true, "why hello -n people", "It is asleep")
	admin.says(t, true, "wake hello -n people", "people/hello serves")
	admin.says(t, true, "why hello -n people", "It is awake")

	lab.apply(t, manifest(key, "idleTimeout: 2"))
	lab.waitState(t, key, "Cold")
	testPortForward(t, admin, key)
}

// testPortForward forwards a port to a sleeping service: it wakes, stays awake while a connection is open, sleeps, and
// a later connection finds its next pod.
func testPortForward(t *testing.T, p plugin, key string) {
	b := inBackground(t, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(p.path, "kubectl-wangell"), "--kubeconfig", p.kubeconfig,
			"port-forward", key, ":80")
	})
	line := b.line(t)
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " to port 80 of "+key)
	if !ok {
		t.Fatalf("it prints %q", line)
	}
	client := &http.Client{Timeout: e2e.Patience, Transport: &http.Transport{}}
	ask := func() (reused bool) {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet,
			"http://"+address, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("through the forwarded port: %v", err)
		}
		defer resp.Body.Close()
		if _, err := e2e.ParseAnswer(io.ReadAll(resp.Body)); err != nil {
			t.Fatal(err)
		}
		return reused
	}
	ask()
	time.Sleep(4 * time.Second) // twice the idle timeout
	if !ask() {
		t.Error("the service did not stay awake for an open connection, which has ended")
	}
	client.CloseIdleConnections()
	lab.waitState(t, key, "Cold")
	ask()
	client.CloseIdleConnections()
}
