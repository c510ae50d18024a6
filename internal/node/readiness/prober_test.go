// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// prober returns a Prober of a pod on 127.0.0.1.
func prober(h corev1.ProbeHandler) *Prober {
	return &Prober{
		Spec: Spec{Container: "app", Probe: &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 5, PeriodSeconds: 1}},
		Addr: netip.MustParseAddr("127.0.0.1"), Dial: (&net.Dialer{}).DialContext,
	}
}

func portOf(addr net.Addr) intstr.IntOrString { return intstr.FromInt(addr.(*net.TCPAddr).Port) }

// expect runs a probe and compares its outcome with what is wanted.
func expect(t *testing.T, p *Prober, ok bool, answer string) {
	t.Helper()
	if gotOK, got := p.Probe(t.Context(), false); gotOK != ok || !strings.Contains(got, answer) {
		t.Errorf("success %t, %q; want %t, %q", gotOK, got, ok, answer)
	}
}

func TestHTTPGet(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "shop.example" || r.Header.Get("X-Probe") != "yes" ||
			!strings.HasPrefix(r.UserAgent(), "wangell-probe/") || r.URL.RawQuery != "deep=1" {
			http.Error(w, fmt.Sprint("unexpected request: ", r.Host, r.Header, r.URL), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/as-told", func(w http.ResponseWriter, r *http.Request) {
		agents, accepts := r.Header.Values("User-Agent"), r.Header.Values("Accept")
		if !slices.Equal(agents, []string{"my-probe/1"}) || !slices.Equal(accepts, []string{"application/json"}) {
			http.Error(w, fmt.Sprint("unexpected headers: ", r.Header), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/starting", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "warming\nup\x1b[31m "+strings.Repeat("x", 1<<20), http.StatusServiceUnavailable)
	})
	mux.Handle("/moved", http.RedirectHandler("/starting", http.StatusFound))
	mux.Handle("/away", http.RedirectHandler("http://other.invalid/", http.StatusFound))
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	get := func(s *httptest.Server, path string) *Prober {
		g := &corev1.HTTPGetAction{
			Path: path, Port: portOf(s.Listener.Addr()), Scheme: corev1.URISchemeHTTP,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "shop.example"}, {Name: "X-Probe", Value: "yes"}},
		}
		if s == secure {
			g.Scheme = corev1.URISchemeHTTPS
		}
		return prober(corev1.ProbeHandler{HTTPGet: g})
	}
	for _, s := range []*httptest.Server{plain, secure} {
		expect(t, get(s, "/ok?deep=1"), true, "httpGet: status 200")
		expect(t, get(s, "/starting"), false, "status 503: warming up[31m xxx")
		expect(t, get(s, "/moved"), false, "status 503")
		expect(t, get(s, "/away"), true, "status 302")
		chosen := get(s, "/as-told")
		h := &chosen.Spec.Probe.HTTPGet.HTTPHeaders
		*h = append(*h, corev1.HTTPHeader{Name: "user-agent", Value: "my-probe/1"},
			corev1.HTTPHeader{Name: "Accept", Value: "application/json"})
		expect(t, chosen, true, "status 200")
	}
	slow := get(plain, "/slow")
	slow.Spec.Probe.TimeoutSeconds = 1
	expect(t, slow, false, "httpGet: no answer within 1s")
	if _, answer := get(plain, "/starting").Probe(t.Context(), false); len(answer) > MaxAnswer {
		t.Errorf("the answer has %d bytes", len(answer))
	}
	plain.Close()
	expect(t, get(plain, "/ok"), false, "connection refused")
}

func TestTCPSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := prober(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: portOf(l.Addr())}})
	expect(t, p, true, "tcpSocket: connected")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, p, false, "connection refused")
	p.Spec.Startup = p.Spec.Probe
	if ok, answer := p.Probe(t.Context(), true); ok || !strings.HasPrefix(answer, "startupProbe: tcpSocket: ") {
		t.Errorf("the startupProbe: success %t, %q", ok, answer)
	}
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, states := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, states)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	port, name, secure := portOf(l.Addr()).IntVal, "shop", corev1.GRPCProbeModeTLS
	all := prober(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}})
	shop := prober(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: &name}})
	expect(t, all, true, "grpc: SERVING")
	expect(t, shop, false, "NotFound")
	states.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	expect(t, shop, false, "NOT_SERVING")
	states.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	expect(t, shop, true, "SERVING")
	shop.Spec.Probe.GRPC.Mode = &secure
	expect(t, shop, false, "Unavailable")
	server.Stop()
	expect(t, all, false, "connection refused")
}

func TestExecProbeSucceedsWithExitCodeZero(t *testing.T) {
	p := prober(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"pg_isready", "-q"}}})
	expect(t, p, false, "no container runtime")
	code, output, failure := 2, []byte("no response\n"), error(nil)
	p.Exec = func(_ context.Context, container string, command []string) (int, []byte, error) {
		if container != "app" || strings.Join(command, " ") != "pg_isready -q" {
			t.Errorf("%q in %q", command, container)
		}
		return code, output, failure
	}
	expect(t, p, false, "exec: pg_isready: exit code 2: no response")
	code, output = 0, nil
	expect(t, p, true, "exit code 0")
	failure = errors.New("not found in PATH")
	expect(t, p, false, "exec: not found in PATH")
}

func TestASpecSurvivesItsEncoding(t *testing.T) {
	p := prober(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}})
	text, err := p.Spec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(text)
	if err != nil || got.Container != "app" || got.Probe.TCPSocket.Port.IntVal != 80 {
		t.Errorf("%+v, %v", got, err)
	}
	p.Spec.Startup = &corev1.Probe{ProbeHandler: p.Spec.Probe.ProbeHandler, TimeoutSeconds: 1, PeriodSeconds: 1}
	if text, err = p.Spec.Encode(); err != nil {
		t.Fatal(err)
	}
	if got, err = Decode(text); err != nil || got.Startup.TCPSocket.Port.IntVal != 80 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{
		`{"probe": {"periodSeconds": 1, "timeoutSeconds": 1}, "startup": {"periodSeconds": 1}}`, "", "{}",
		`{"probe": {}}`, `{"probe": {"periodSeconds": 1}}`,
	} {
		if _, err := Decode(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
