// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// The server answers everything with 503 at first. It listens from the beginning, which is all that its readinessProbe
// asks: what keeps clients waiting is the startupProbe. One that never succeeds ends the pod, long before wakeTimeout.
func TestClientsWaitForTheStartupProbe(t *testing.T) {
	const probes = "wakeTimeout: 3600\nreadyWhen: Probe\nreadinessProbe: {tcpSocket: {port: 8080}}\n" +
		"startupProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, failureThreshold: "
	l := newLab(t, 1)
	l.start(t,
		service{name: "slow", env: map[string]string{"READY_DELAY": "700ms"}, more: probes + "60}"},
		service{name: "never", env: map[string]string{"READY_DELAY": "1h"}, more: probes + "1}"})
	e2e.MustAsk(t, l.Client(), l.address(t, "slow"))
	_, err := e2e.Ask(l.Client(), l.address(t, "never"))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client of the service that does not start: %v, want connection refused", err)
	}
	const want = "the pod did not start in time: startupProbe: httpGet: status 503"
	s := l.until(t, "never", "failed", isState("Failed"))
	if m := s.Service.Status.Message; !strings.HasPrefix(m, want) {
		t.Errorf("message %q", m)
	}
}
