// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/browser"
	"wangell.loutres.me/test/testutil/e2e"
)

// dashboardURL is what up and dashboard print.
var dashboardURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`)

// A browser on the node sees a service wake, its load, its way to sleep, and the waterfall of its wake.
func TestDashboardShowsAServiceFromItsWakeToItsSleep(t *testing.T) {
	browser.Need(t)
	l := newLab(t, 1)
	requests := "resources: {requests: {cpu: 250m, memory: 64Mi}}\n"
	hello := service{name: "hello", env: map[string]string{"STOP": "close"},
		more: requests + "maxReplicas: 3\nscaling: {target: 10, outInterval: 1, inStabilization: 600}"}
	u := l.startWith(t, manifest(hello, service{name: "docs", more: requests}, service{name: "search", more: requests},
		service{name: "shop", more: requests}), "-f", "-", "--ui=127.0.0.1:0")

	// The one that up serves only reads, and wants its token.
	own := dashboardURL.FindString(u.said())
	base, _, _ := strings.Cut(own, "/?")
	client := e2e.HTTPClient(l.Node, true)
	defer client.CloseIdleConnections()
	get := func(address string) int { return e2e.Status(t, client, address) }
	if code := get(base + "/api/about"); code != 401 {
		t.Errorf("without the token: status %d, want 401", code)
	}
	client.Jar, _ = cookiejar.New(nil)
	if code := get(own); code != 200 {
		t.Errorf("%s: status %d, want 200", own, code)
	}
	if resp, err := client.Post(base+"/api/sleep?service=default/hello", "", nil); err != nil || resp.StatusCode < 400 {
		t.Errorf("sleep without --ui-actions: %v, %v", resp, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := l.Node.Command(ctx, program, "dashboard", "--run-dir", l.run, "--no-open", "--ui-actions")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }() // it is killed
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if url := dashboardURL.FindString(line); err != nil || url == "" {
		t.Fatalf("wangell dashboard: %q, %v", line, err)
	}
	browser.Run(t, l.Node.Command, "real.test.mjs", "DASHBOARD_URL="+strings.TrimSpace(line),
		"SERVICE_ADDRESS="+l.address(t, "hello"))
	if s := l.service(t, "hello"); s.Service.Status.State != "Cold" || s.Traffic.NewFlows == 0 {
		t.Errorf("in the end: %+v", s)
	}
}

func TestDashboardNeedsAnInstance(t *testing.T) {
	l := newLab(t, 1)
	if _, err := l.wangell("dashboard"); err == nil || !strings.Contains(err.Error(), "no wangell instance is running") {
		t.Errorf("%v", err)
	}
}
