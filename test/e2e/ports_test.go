// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// web is a service whose program listens on 8080 and, after a delay, on 8443, and never on 9113.
func web(delay string) service {
	return service{
		name: "web", env: map[string]string{"MORE_PORTS": "8443", "MORE_DELAY": delay},
		ports: "[{name: http, port: 80, targetPort: 8080, hostPort: 8000}, {name: https, port: 443, targetPort: 8443, " +
			"hostPort: 8001}, {name: metrics, port: 9113}]",
		more: "wakeTimeout: 3",
	}
}

// at returns the address of a service with another port.
func (l *lab) at(t *testing.T, name string, port uint16) string {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr(l.service(t, name).Service.Status.LoadBalancerIP), port).String()
}

// Any port wakes the service; a client waits for its own port, and one that never opens refuses its clients alone.
func TestPortsOfAServiceWakeItTogether(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, web("300ms"))
	http, https, metrics := l.at(t, "web", 80), l.at(t, "web", 443), l.at(t, "web", 9113)

	first, err := e2e.Ask(l.Client(), https) // the port that opens last
	if err != nil {
		t.Fatalf("a wake by the second port: %v", err)
	}
	if first.ClientAddr() != l.Client().Addr {
		t.Errorf("the service sees client %s, want %s", first.Client, l.Client().Addr)
	}
	for _, address := range []string{http, https, netip.AddrPortFrom(l.Node.Addr, 8000).String(),
		netip.AddrPortFrom(l.Node.Addr, 8001).String()} {
		if a, err := e2e.Ask(l.Client(), address); err != nil || a.Instance != first.Instance {
			t.Errorf("%s: instance %s, %v, want %s", address, a.Instance, err, first.Instance)
		}
	}
	if wakes := l.wakes(t, "web"); len(wakes) != 1 {
		t.Errorf("%d wakes, want 1", len(wakes))
	}

	refused(t, l.Client(), metrics)
	const says = "clients of port 9113 (metrics) are refused"
	l.until(t, "web", "a message about the port that is not open", func(s status.Status) bool {
		return strings.Contains(s.Service.Status.Message, says)
	})
	refused(t, l.Client(), metrics) // at once: the wait is over
	if a, err := e2e.Ask(l.Client(), http); err != nil || a.Instance != first.Instance {
		t.Errorf("the other ports: instance %s, %v, want %s", a.Instance, err, first.Instance)
	}

	l.sleep(t, "web")
	refused(t, l.Client(), metrics) // which wakes the others
	if s := l.service(t, "web"); s.Service.Status.State != "Warm" || len(s.Pods) != 1 {
		t.Errorf("after a wake by a port that never opens: %s with %d pods, want Warm with 1", s.Service.Status.State,
			len(s.Pods))
	}
	if _, err := e2e.Ask(l.Client(), http); err != nil {
		t.Error(err)
	}
}

// The idle time is that of the port that was used last, and a packet for any port thaws the pod.
func TestPortsOfAServiceSleepAndFreezeTogether(t *testing.T) {
	l := newLab(t, 1)
	frozen := freezing(lines("lines"), ", reclaim: false, freezeWhenBusy: true")
	frozen.env = map[string]string{"MODE": "lines", "MORE_PORTS": "8081"}
	frozen.ports = "[{name: first, port: 80, targetPort: 8080}, {name: second, port: 81, targetPort: 8081}]"
	u := l.start(t, frozen)
	var open []*e2e.Conversation
	for _, port := range []uint16{80, 81} {
		open = append(open, e2e.MustConverse(t, l.Client(), l.at(t, "lines", port)))
	}
	for _, k := range open {
		since := u.now()
		k.MustEcho(t, "awake")
		u.untilFrozen(t, since, "lines")
	}
	l.killOne(t, daemonProcess...)
	for _, k := range open {
		k.MustEcho(t, "after the daemon was killed")
	}
	s := l.service(t, "lines")
	if n := s.Service.Status.Replicas; n != 1 || s.Traffic.OpenFlows != 2 {
		t.Errorf("%d pods with %d connections, want 1 with 2", n, s.Traffic.OpenFlows)
	}
}

// Another number of a further port, and another order of the ports, end no connection and start no pod.
func TestConnectionsOutlastAChangeOfPorts(t *testing.T) {
	l := newLab(t, 1)
	file := filepath.Join(l.dir, "services.yaml")
	write := func(ports string) {
		t.Helper()
		s := lines("lines")
		s.env["MORE_PORTS"] = "8081"
		s.ports = "[" + ports + "]"
		if err := os.WriteFile(file, []byte(manifest(s)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first = "{name: first, port: 80, targetPort: 8080}"
	write(first + ", {name: second, port: 81, targetPort: 8081}")
	l.startWith(t, "", "-f", file)
	var open []*e2e.Conversation
	for _, port := range []uint16{80, 81} {
		open = append(open, e2e.MustConverse(t, l.Client(), l.at(t, "lines", port)))
	}
	pod := l.service(t, "lines").Pods[0].ID
	served := func(address string) {
		t.Helper()
		e2e.Eventually(t, "the service is at "+address, func() (bool, string) {
			c, err := e2e.Converse(l.Client().Dialer(), address)
			if err != nil {
				return false, err.Error()
			}
			return c.End() == nil, ""
		})
		for _, k := range open {
			k.MustEcho(t, "it goes on")
		}
	}
	write(first + ", {name: second, port: 82, targetPort: 8081}")
	served(l.at(t, "lines", 82))
	refused(t, l.Client(), l.at(t, "lines", 81))
	write(strings.Replace(first, "80,", "83,", 1) + ", {name: second, port: 82, targetPort: 8081}")
	served(l.at(t, "lines", 83))
	served(l.at(t, "lines", 82))
	if s := l.service(t, "lines"); len(s.Pods) != 1 || s.Pods[0].ID != pod {
		t.Errorf("pods %+v, want %s alone", s.Pods, pod)
	}
}
