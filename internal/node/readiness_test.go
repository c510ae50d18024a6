// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/internal/node/readiness"
	"wangell.loutres.me/internal/wire"
)

// withProbe gives a pod a probe that runs every second, of which one failure counts.
func withProbe(t *testing.T, b *wire.Backend, h corev1.ProbeHandler) {
	t.Helper()
	var err error
	b.Probe, err = readiness.Spec{Container: "app", Probe: &corev1.Probe{
		ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1,
	}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.Runtime = fmt.Sprintf("pod-%d", b.PodID)
}

// answering starts a server in pod n that answers everything with the status that it holds.
func (w *world) answering(n int, status *atomic.Int64) {
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/open" { // an answer that takes as long as the client likes
			rw.WriteHeader(http.StatusOK)
			rw.(http.Flusher).Flush()
			_, _ = io.Copy(rw, r.Body)
			return
		}
		rw.WriteHeader(int(status.Load()))
		fmt.Fprintf(rw, "status %d", status.Load())
	})}
	in(w.t, fmt.Sprintf("pod%d", n), func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err == nil {
			go srv.Serve(l)
		}
		return err
	})
	w.t.Cleanup(func() { srv.Close() })
}

// dialFrom connects to the service from a namespace.
func dialFrom(t *testing.T, ns string) (c net.Conn) {
	t.Helper()
	in(t, ns, func() (err error) {
		c, err = net.DialTimeout("tcp4", vip.String(), time.Minute)
		return err
	})
	return c
}

func TestClientsWaitUntilTheProbeSucceeds(t *testing.T) {
	w := newWorld(t)
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	answers := make(chan string, 10)
	ask := func() {
		go func() {
			a, err := get(clientNet)
			if err != nil {
				a = err.Error()
			}
			answers <- a
		}()
	}
	expect := func(want string) {
		t.Helper()
		if a := <-answers; a != want {
			t.Errorf("answer %q, want %q", a, want)
		}
	}
	ask()
	await[*wire.Wake](w)
	pod := w.pod(1)
	withProbe(t, &pod, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/", Port: intstr.FromInt32(8080), Scheme: corev1.URISchemeHTTP,
	}})
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	w.answering(1, &status)
	first := await[*wire.Unready](w)
	if first.PodID != 1 || first.At == 0 || first.Answer != "" {
		t.Fatalf("unready %+v", first)
	}
	if u := await[*wire.Unready](w); u.Answer != "httpGet: status 503: status 503" {
		t.Fatalf("unready %+v", u)
	}
	status.Store(http.StatusOK)
	if l := await[*wire.Listening](w); l.PodID != 1 || l.At <= first.At {
		t.Fatalf("listening %+v", l)
	}
	expect("status 200")
	pod.State = wire.PodServing
	w.send(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}})

	// It fails: open connections stay, new ones wait, also when the controller does not know yet.
	open := dialFrom(t, clientNet)
	defer open.Close()
	fmt.Fprintf(open, "POST /open HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	status.Store(http.StatusInternalServerError)
	if u := await[*wire.Unready](w); u.At != 0 || !strings.Contains(u.Answer, "status 500") {
		t.Fatalf("unready %+v", u)
	}
	w.send(&wire.Backends{Service: vip, Generation: 3, Pods: []wire.Backend{pod}})
	ask()
	await[*wire.Wake](w)
	pod.State = wire.PodStarting
	w.send(&wire.Backends{Service: vip, Generation: 4, Pods: []wire.Backend{pod}})
	if u := await[*wire.Unready](w); !strings.Contains(u.Answer, "status 500") {
		t.Fatalf("the controller asked, and got %+v", u)
	}
	if len(answers) > 0 {
		t.Errorf("a client got %q from a pod that is not ready", <-answers)
	}
	fmt.Fprintf(open, "4\r\nping\r\n0\r\n\r\n")
	if text, err := io.ReadAll(io.LimitReader(open, 15)); err != nil || string(text) != "HTTP/1.1 200 OK" {
		t.Errorf("the open connection: %q, %v", text, err)
	}
	status.Store(http.StatusOK)
	await[*wire.Listening](w)
	expect("status 200")
	// Probes are no use of the service, which is idle although they go on.
	_ = open.Close()
	await[*wire.Idle](w)

	// The next daemon goes on with a pod that serves.
	w.stop()
	w.start()
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	status.Store(http.StatusInternalServerError)
	if u := await[*wire.Unready](w); u.At != 0 || !strings.Contains(u.Answer, "status 500") {
		t.Fatalf("after a restart: %+v", u)
	}
}

// The readinessProbe succeeds at once, and is not asked before the startupProbe has succeeded. The startupProbe fails
// after a second, and the controller learns that; here it lets the pod go on, as in a cluster.
func TestClientsWaitForTheStartupProbeFirst(t *testing.T) {
	var code atomic.Int64
	code.Store(1)
	w := newWorld(t, func(c *Config) {
		c.Exec = func(context.Context, string, string, []string) (int, []byte, error) {
			return int(code.Load()), nil, nil
		}
	})
	pod := w.pod(1)
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1}
	}
	var err error
	pod.Runtime = "pod-1"
	pod.Probe, err = readiness.Spec{
		Container: "app",
		Probe:     probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}),
		Startup:   probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"started"}}}),
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w.listen(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	if u := await[*wire.Unready](w); u.Answer != "" || u.Failed {
		t.Fatalf("unready %+v", u)
	}
	for {
		u := await[*wire.Unready](w)
		if u.Answer != "startupProbe: exec: started: exit code 1" {
			t.Fatalf("unready %+v", u)
		}
		if u.Failed {
			break
		}
	}
	code.Store(0)
	await[*wire.Listening](w)
	if a, err := get(clientNet); err != nil || a != "pod1 10.46.200.10" {
		t.Errorf("%q, %v", a, err)
	}
}

func TestProbesRunCommandsInThePod(t *testing.T) {
	var code atomic.Int64
	code.Store(2)
	w := newWorld(t, func(c *Config) {
		c.Exec = func(_ context.Context, pod, container string, command []string) (int, []byte, error) {
			if pod != "pod-1" || container != "app" || strings.Join(command, " ") != "pg_isready --quiet" {
				t.Errorf("%q in %s of %s", command, container, pod)
			}
			return int(code.Load()), []byte("rejecting connections"), nil
		}
	})
	pod := w.pod(1)
	withProbe(t, &pod, corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"pg_isready", "--quiet"}}})
	w.listen(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	for {
		if u := await[*wire.Unready](w); u.Answer == "exec: pg_isready: exit code 2: rejecting connections" {
			break
		}
	}
	code.Store(0)
	await[*wire.Listening](w)
	if a, err := get(clientNet); err != nil || a != "pod1 10.46.200.10" {
		t.Errorf("%q, %v", a, err)
	}
}
