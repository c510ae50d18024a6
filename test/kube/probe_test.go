// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// testReadyWhenProbe wakes a service whose server listens at once and answers every request with 503 for two seconds.
// No client sees that, whether its readinessProbe or its startupProbe waits for it. Without a probe, clients do.
func testReadyWhenProbe(t *testing.T) {
	const key, startup, without, delay = "default/probed", "default/started", "default/unprobed", 2 * time.Second
	env := fmt.Sprintf("idleTimeout: 600\nenv: [{name: READY_DELAY, value: %s}]\n", delay)
	lab.apply(t, manifest(key, env+"readyWhen: Probe\nreadinessProbe: {httpGet: {path: /ready, port: 8080}}"))
	lab.apply(t, manifest(startup, env+"readyWhen: Probe\nreadinessProbe: {tcpSocket: {port: 8080}}\n"+
		"startupProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1, failureThreshold: 60}"))
	lab.apply(t, manifest(without, env))
	address := map[string]string{}
	for _, k := range []string{key, startup, without} {
		address[k] = lab.address(t, k)
		lab.waitCold(t, k)
	}
	begin := time.Now()
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			time.Sleep(time.Duration(i) * 150 * time.Millisecond) // some come while it listens and is not ready
			if _, err := e2e.Ask(lab.client, address[key]); err != nil {
				t.Errorf("client %d, %v after the first one: %v", i, time.Since(begin), err)
			}
		})
	}
	if _, err := e2e.Ask(lab.client, address[without]); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("without a probe, a client is told %v, want 503", err)
	}
	// Its readinessProbe would succeed at once.
	e2e.MustAsk(t, lab.client, address[startup])
	clients.Wait()
	lab.waitState(t, key, "Warm")
	e2e.Eventually(t, "the phases of the wake", func() (bool, string) {
		w := lab.get(t, key).Status.LastWake
		if w == nil {
			return false, "none"
		}
		at := map[string]int64{}
		for _, p := range w.Phases {
			at[p.Name] = p.Ms
		}
		return at["ready"]-at["listening"] > delay.Milliseconds()*9/10 && at["released"] >= at["ready"], fmt.Sprintf("%+v", w)
	})
}
