// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const patience = 60 * time.Second

// fake is a service with one pod at a time, which answers each line with the pod's number and the port.
type fake struct {
	mu            sync.Mutex
	held, touched int
	holds         int
	pod           int
	ended         chan struct{}
	refuse        error
}

func (f *fake) Hold(context.Context) (<-chan struct{}, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, nil, f.refuse
	}
	f.held++
	f.holds++
	f.ended = make(chan struct{})
	return f.ended, sync.OnceFunc(func() { f.mu.Lock(); f.held--; f.mu.Unlock() }), nil
}

func (f *fake) Touch(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touched++
	return nil
}

func (f *fake) Link(context.Context) (Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == 0 {
		return nil, errors.New("it sleeps")
	}
	return &fakeLink{f, f.pod}, nil
}

// look returns what holds at the moment.
func (f *fake) look(what func() bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return what()
}

type fakeLink struct {
	of  *fake
	pod int
}

func (l *fakeLink) Lives(context.Context) bool {
	return l.of.look(func() bool { return l.of.pod == l.pod })
}
func (l *fakeLink) Close() error { return nil }
func (l *fakeLink) Pipe(conn net.Conn, port uint16) error {
	b := make([]byte, 1)
	for {
		if _, err := conn.Read(b); err != nil {
			return nil
		}
		if _, err := conn.Write([]byte{byte('0' + l.pod), byte(port)}); err != nil {
			return err
		}
	}
}

// world is a forwarder of port 7 that runs.
type world struct {
	t       *testing.T
	service *fake
	addr    string
	end     context.CancelFunc
	done    chan error
	out     bytes.Buffer // read it once done has a value
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{t: t, service: &fake{pod: 1}, addr: l.Addr().String(), end: cancel, done: make(chan error, 1)}
	go func() { w.done <- New(w.service, &w.out).Run(ctx, []net.Listener{l}, []uint16{7}) }()
	t.Cleanup(cancel)
	return w
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// ask sends a byte on a connection and returns the number of the pod that answers for port 7.
func (w *world) ask(c net.Conn) byte {
	w.t.Helper()
	if _, err := c.Write([]byte{'?'}); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 2)
	if _, err := io.ReadFull(c, b); err != nil || b[1] != 7 {
		w.t.Fatalf("%v, %v", b, err)
	}
	return b[0]
}

func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if w.service.look(holds) {
			return
		}
	}
	w.t.Fatalf("did not happen: %s", what)
}

// The service is held from the first connection to the end of the last one, and its idle timeout begins then.
func TestServiceIsHeldWhileItIsUsed(t *testing.T) {
	w := newWorld(t)
	s := w.service
	a, b := w.dial(), w.dial()
	if w.ask(a) != '1' || w.ask(b) != '1' {
		t.Error("another pod answers")
	}
	if !s.look(func() bool { return s.held == 1 && s.holds == 1 && s.touched == 0 }) {
		t.Errorf("%+v", s)
	}
	a.Close()
	w.ask(b)
	b.Close()
	w.until("it is released", func() bool { return s.held == 0 && s.touched == 1 })
	w.ask(w.dial())
	if !s.look(func() bool { return s.holds == 2 }) {
		t.Errorf("%+v", s)
	}
}

// A service whose controller goes is held again by the next one.
func TestNextControllerHoldsTheService(t *testing.T) {
	w := newWorld(t)
	s := w.service
	c := w.dial()
	w.ask(c)
	s.look(func() bool { close(s.ended); return true })
	w.until("it is held again", func() bool { return s.holds == 2 })
	w.ask(c)
	c.Close()
	w.until("it is released", func() bool { return s.touched == 1 })
}

func TestConnectionsGoToTheNextPod(t *testing.T) {
	w := newWorld(t)
	s := w.service
	w.ask(w.dial())
	s.look(func() bool { s.pod = 2; return true })
	if got := w.ask(w.dial()); got != '2' {
		t.Errorf("pod %c answers", got)
	}
}

// At its end, connections end, the service is released, and nothing listens.
func TestForwarderEndsCleanly(t *testing.T) {
	w := newWorld(t)
	s := w.service
	c := w.dial()
	w.ask(c)
	w.end()
	if err := <-w.done; err != nil || w.out.Len() > 0 {
		t.Errorf("%v, %q", err, &w.out)
	}
	if !s.look(func() bool { return s.held == 0 && s.touched == 1 }) {
		t.Errorf("%+v", s)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
	if c, err := net.Dial("tcp", w.addr); err == nil {
		c.Close()
		t.Error("something listens")
	}
}

// A connection that cannot be forwarded is closed, and says why; the forwarder goes on.
func TestRefusedWakeIsTold(t *testing.T) {
	w := newWorld(t)
	s := w.service
	s.look(func() bool { s.refuse = errors.New("image missing"); return true })
	if _, err := w.dial().Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	s.look(func() bool { s.refuse = nil; return true })
	w.ask(w.dial())
	w.end()
	<-w.done
	if out := w.out.String(); strings.Count(out, "\n") != 1 || !strings.Contains(out, ": image missing\n") {
		t.Errorf("got %q", out)
	}
}

func TestParsePort(t *testing.T) {
	for text, want := range map[string]Port{"80": {80, 80}, "8080:80": {8080, 80}, ":80": {0, 80}, "0:80": {0, 80}} {
		if got, err := ParsePort(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "80:", "70000", "1:2:3", "0", "80:0", "-1:80"} {
		if got, err := ParsePort(text); err == nil || !strings.Contains(err.Error(), "port \""+text) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// The pod to forward to is one that does not end, rather a ready one, and else the newest.
func TestBestPod(t *testing.T) {
	pod := func(name string, age int, change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.Unix(int64(1000-age), 0)}, Spec: corev1.PodSpec{NodeName: "n"}}
		if change != nil {
			change(&p)
		}
		return p
	}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	old, young := pod("old", 9, ready), pod("young", 1, nil)
	for want, pods := range map[string][]corev1.Pod{
		"old":     {young, old},
		"young":   {pod("older", 5, nil), young},
		"running": {pod("ending", 0, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), pod("running", 7, nil)},
		"here":    {pod("nowhere", 0, func(p *corev1.Pod) { p.Spec.NodeName = "" }), pod("here", 7, nil)},
		"lasting": {pod("failed", 0, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), pod("lasting", 7, nil)},
	} {
		if got := best(pods); got == nil || got.Name != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	if got := best(nil); got != nil {
		t.Errorf("got %v", got)
	}
}
