// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/browser"
	"wangell.loutres.me/test/testutil/e2e"
)

// watchers is a namespace whose user dana may edit it and reach the controller, and another one.
const watchers = `
apiVersion: v1
kind: Namespace
metadata: {name: watched}
---
apiVersion: v1
kind: Namespace
metadata: {name: hidden}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: dana, namespace: watched}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: editors, namespace: watched}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: dana, namespace: watched}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: watchers-reach, namespace: wangell-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: wangell-api}
subjects: [{kind: ServiceAccount, name: dana, namespace: watched}]
`

var dashboardURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`)

// testDashboard opens 'kubectl wangell dashboard' in Chromium, on a host outside of the cluster, as a user who may see
// one namespace.
func testDashboard(t *testing.T) {
	browser.Need(t)
	lab.apply(t, watchers)
	const key, other = "watched/hello", "hidden/hello"
	lab.apply(t, manifest(key, "idleTimeout: 600\nmaxReplicas: 2\n"+
		"scaling: {target: 10, outInterval: 1, inStabilization: 600}"))
	lab.apply(t, manifest(other, "idleTimeout: 600"))
	addr := lab.address(t, key)
	lab.address(t, other)
	lab.announcer(t, netip.MustParseAddrPort(addr).Addr()) // the browser asks once
	admin := buildPlugin(t, lab.KubeconfigLAN)
	token := e2e.Must(lab.kubectl("", "create", "token", "-n", "watched", "dana"))(t)
	dana := admin.as(t, "dana", strings.TrimSpace(token))

	url := openDashboard(t, dana, "--ui-actions")
	var nodes []string
	for _, n := range lab.Nodes {
		nodes = append(nodes, n.Name)
	}
	kubectl := fmt.Sprintf("%s --kubeconfig %s", filepath.Join(lab.Bin, "kubectl"), lab.KubeconfigLAN)
	browser.Run(t, lab.client.Command, "cluster.test.mjs", "DASHBOARD_URL="+url, "SERVICE_ADDRESS="+addr,
		"ADMIN_URL="+openDashboard(t, admin), "NODES="+strings.Join(nodes, " "),
		fmt.Sprintf("KILL_LEADER=%s delete pod -n %s %s --wait=false", kubectl, productNamespace, lab.leader(t)))
	lab.waitState(t, key, "Cold")

	// A user who is no longer accepted sees nothing within seconds.
	client := e2e.HTTPClient(lab.client, true)
	defer client.CloseIdleConnections()
	client.Jar, _ = cookiejar.New(nil)
	get := func(address string) int { return e2e.Status(t, client, address) }
	base, _, _ := strings.Cut(url, "/?")
	if code := get(base + "/api/about"); code != http.StatusUnauthorized {
		t.Errorf("without the token of the URL: status %d", code)
	}
	if code := get(url); code != http.StatusOK {
		t.Errorf("with the token of the URL: status %d", code)
	}
	e2e.Must(lab.kubectl("", "delete", "serviceaccount", "-n", "watched", "dana"))(t)
	e2e.Eventually(t, "the deleted account is refused", func() (bool, string) {
		code := get(base + "/api/about")
		return code == http.StatusUnauthorized || code == http.StatusBadGateway, fmt.Sprint("status ", code)
	})
}

// openDashboard runs 'kubectl wangell dashboard -A' on a host outside of the cluster until the test ends, and returns
// the URL of the page.
func openDashboard(t *testing.T, p plugin, args ...string) string {
	t.Helper()
	b := inBackground(t, func(ctx context.Context) *exec.Cmd {
		return lab.client.Command(ctx, append([]string{
			filepath.Join(p.path, "kubectl-wangell"), "--kubeconfig", p.kubeconfig, "dashboard", "-A", "--no-open",
		}, args...)...)
	})
	line := b.line(t)
	url := dashboardURL.FindString(line)
	if url == "" {
		t.Fatalf("kubectl wangell dashboard: %q", line)
	}
	return url
}
