// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// world makes a host the world that pods see: an HTTP server at port 8000, which answers with an Answer, and a name
// server for test. It returns the resolv.conf that names that server.
func (l *lab) world(t *testing.T, host *netlab.Namespace) string {
	t.Helper()
	listener, err := host.Listen(t.Context(), "tcp", ":8000")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(e2e.Answer{Client: r.RemoteAddr, Instance: "world"})
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	connections, err := host.Listen(t.Context(), "tcp", ":53")
	if err != nil {
		t.Fatal(err)
	}
	var packets net.PacketConn
	if err := host.Do(func() (err error) {
		packets, err = net.ListenPacket("udp4", ":53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	names := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		reply := new(dns.Msg)
		reply.SetReply(m)
		q := m.Question[0]
		header := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
		switch {
		case q.Name == "world.test." && q.Qtype == dns.TypeA:
			reply.Answer = []dns.RR{&dns.A{Hdr: header, A: host.Addr.AsSlice()}}
		case q.Name == "many.test." && q.Qtype == dns.TypeA: // more than fits into a packet
			for i := range byte(200) {
				reply.Answer = append(reply.Answer, &dns.A{Hdr: header, A: net.IPv4(192, 0, 2, i+1)})
			}
		case q.Name != "world.test." && q.Name != "many.test.":
			reply.Rcode = dns.RcodeNameError
		}
		if w.LocalAddr().Network() == "udp" {
			reply.Truncate(dns.MinMsgSize)
		}
		_ = w.WriteMsg(reply)
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: names}, {Listener: connections, Handler: names}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	file := filepath.Join(l.dir, "resolv.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "nameserver %s\n", host.Addr), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// from has a pod of a service ask its own network. It returns the body of the answer.
func (l *lab) from(t *testing.T, name, path string, query url.Values) (string, error) {
	t.Helper()
	body, err := e2e.Get(l.Client(), l.address(t, name), path+"?"+query.Encode())
	return strings.TrimSpace(string(body)), err
}

func TestPodsReachTheWorldAndServicesByName(t *testing.T) {
	l := newLab(t, 1)
	resolv := l.world(t, l.Client())
	text := manifest(service{name: "web"}, service{name: "hello"}) +
		strings.Replace(manifest(service{name: "far"}), "{name: far}", "{name: far, namespace: other}", 1)
	l.startWith(t, text, "-f", "-", "--resolv-conf", resolv)
	proxy := func(target string) (e2e.Answer, error) {
		return e2e.ParseAnswer(e2e.Get(l.Client(), l.address(t, "web"), "/proxy?target="+target))
	}
	resolve := func(name string) (string, error) { return l.from(t, "web", "/resolve", url.Values{"name": {name}}) }

	// The world sees the machine.
	for _, target := range []string{netip.AddrPortFrom(l.Client().Addr, 8000).String(), "world.test:8000"} {
		if a, err := proxy(target); err != nil || a.Instance != "world" || a.ClientAddr() != l.Node.Addr {
			t.Errorf("%s: %+v, %v, want it to see %s", target, a, err, l.Node.Addr)
		}
	}
	if found, err := resolve("many.test"); err != nil || strings.Count(found, "192.0.2.") != 200 {
		t.Errorf("a long answer: %s, %v", found, err)
	}
	// Services see the pod. A look-up wakes none.
	host, _, _ := net.SplitHostPort(l.address(t, "hello"))
	for _, name := range []string{"hello", "hello.default", "hello.default.svc", "hello.default.svc.cluster.local"} {
		if found, err := resolve(name); err != nil || found != fmt.Sprintf("[%q]", host) {
			t.Errorf("%s: %s, %v, want %s", name, found, err, host)
		}
	}
	if s := l.service(t, "hello"); s.Service.Status.State != "Cold" {
		t.Errorf("hello is %s after look-ups", s.Service.Status.State)
	}
	if a, err := proxy("hello"); err != nil || a.ClientAddr() != l.service(t, "web").Pods[0].Addr {
		t.Errorf("hello by its name: %+v, %v", a, err)
	}
	// A pod that is its own service's client does not see its own address. Its plain name is its host's, in /etc/hosts.
	if a, err := proxy("web.default"); err != nil || !netip.MustParsePrefix("240.0.0.0/4").Contains(a.ClientAddr()) {
		t.Errorf("a pod by its own service's name: %+v, %v", a, err)
	}
	if _, err := resolve("far.other"); err != nil {
		t.Error(err)
	}
	if found, err := resolve("far"); err == nil {
		t.Errorf("a service of another namespace by its plain name: %s", found)
	}
	if found, err := resolve(host); err != nil || found != `["hello.default.svc.cluster.local."]` {
		t.Errorf("the name of %s: %s, %v", host, found, err)
	}
	// Where nothing leads, pods and the machine are told at once; the kernel's own timeout is minutes.
	pod := l.service(t, "web").Pods[0].Addr
	for what, address := range map[string]string{
		"an unused service address": "10.46.100.250:80", "an unused pod address": unusedPod(pod) + ":80",
		"a pod": l.service(t, "hello").Pods[0].Addr.String() + ":8080", "the next hop": "169.254.46.1:80",
	} {
		// Sent again, as programs do: the kernel limits how many errors it sends to an address (icmp_ratelimit).
		e2e.Eventually(t, "an error for a datagram to "+what, func() (bool, string) {
			_, err := l.from(t, "web", "/udp", url.Values{"target": {address}})
			return err != nil && (strings.Contains(err.Error(), "no route to host") ||
				strings.Contains(err.Error(), "refused")), fmt.Sprint(err)
		})
		begin := time.Now()
		if a, err := proxy(address); err == nil {
			t.Errorf("%s: %+v", what, a)
		} else if !strings.Contains(err.Error(), "no route to host") && !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(begin); took > e2e.Patience/2 {
			t.Errorf("%s: rejected after %v", what, took)
		}
	}
	if _, err := l.from(t, "web", "/udp", url.Values{"target": {host + ":80"}}); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("a datagram to a service: %v", err)
	}
	for _, address := range []string{"10.46.100.250:80", unusedPod(pod) + ":80"} {
		if c, err := l.Node.Dialer().Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("the machine reaches %s", address)
		} else if !strings.Contains(err.Error(), "no route to host") {
			t.Errorf("the machine, %s: %v", address, err)
		}
	}
	for _, addr := range []string{"10.46.100.250", unusedPod(pod), "169.254.46.1"} {
		if found, err := resolve(addr); err == nil || !strings.Contains(err.Error(), "no such host") {
			t.Errorf("the name of %s: %s, %v", addr, found, err)
		}
	}
	// The machine forwards nothing else: the client has no way to a pod, nor through the machine.
	if out, err := l.Client().Command(t.Context(), "ip", "route", "add", "10.46.128.0/17", "via", l.Node.Addr.String()).
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if c, err := l.Client().Dialer().Dial("tcp", netip.AddrPortFrom(pod, 8080).String()); err == nil {
		c.Close()
		t.Error("a host outside reaches a pod at its own address")
	}
}

// unusedPod returns a pod address next to one that is used. Those of the next pods are the following ones.
func unusedPod(used netip.Addr) string {
	a := used
	for range 3 {
		a = a.Prev()
	}
	return a.String()
}

// A killed instance leaves its table; the next one takes it over, and down removes it. checkClean compares.
func TestWayOutOfPodsSurvivesAKill(t *testing.T) {
	l := newLab(t, 1)
	resolv := l.world(t, l.Client())
	flags := []string{"-f", "-", "--resolv-conf", resolv}
	u := l.startWith(t, manifest(service{name: "web"}), flags...)
	ask := func() {
		t.Helper()
		a, err := e2e.ParseAnswer(e2e.Get(l.Client(), l.address(t, "web"), "/proxy?target=world.test:8000"))
		if err != nil || a.Instance != "world" {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	ask()
	pod := l.service(t, "web").Pods[0].ID
	if err := u.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	u.awaitEnd(t)
	l.startWith(t, manifest(service{name: "web"}), flags...)
	ask()
	if now := l.service(t, "web").Pods[0].ID; now != pod {
		t.Errorf("the pod is %s, want %s to go on", now, pod)
	}
}
