// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/runtime"
)

// patience bounds the wait for what must happen.
const patience = 60 * time.Second

// reports collects what a watcher reports.
type reports struct {
	mu   sync.Mutex
	all  []runtime.PodReport
	next int
}

func (l *reports) add(s runtime.PodReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
}

// await checks that these reports come next, and no others, as "event pod container code".
func (l *reports) await(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			if l.next < len(l.all) {
				s := l.all[l.next]
				l.next++
				l.mu.Unlock()
				if got := fmt.Sprintf("%d %s %s %d", s.Event, s.Pod.ID, s.Container, s.Code); got != w {
					t.Fatalf("got %q, want %q", got, w)
				}
				if s.Pod.Service != "default/hello" || s.Pod.SpecHash != "abc" || s.Pod.Addr.String() != "10.244.0.9" ||
					s.Pod.Netns == "" ||
					!strings.HasPrefix(s.Name, "pod-") || s.At <= 0 || s.At > monotime.Now() {
					t.Fatalf("got %+v", s)
				}
				break
			}
			l.mu.Unlock()
			if time.Now().After(end) {
				t.Fatalf("%q is not reported", w)
			}
		}
	}
}

func (l *reports) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func watchFake(t *testing.T, f *critest.Runtime) *reports {
	t.Helper()
	l := &reports{}
	w, err := New(Config{Endpoint: "unix://" + f.Path, OnPodReport: l.add, netns: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return l
}

// runPod plays a pod: its container starts, crashes and is restarted, and the pod is removed.
func runPod(t *testing.T, f *critest.Runtime, l *reports, id string) {
	t.Helper()
	f.Pod(id, "hello", t.TempDir(), "10.244.0.9")
	l.await(t, fmt.Sprintf("1 uid-%s  0", id))
	f.Container(id, id+"-c1", "main")
	l.await(t, fmt.Sprintf("2 uid-%s main 0", id))
	f.Become(id+"-c1", critest.Running, 0)
	l.await(t, fmt.Sprintf("3 uid-%s main 0", id))
	f.Become(id+"-c1", critest.Exited, 137)
	l.await(t, fmt.Sprintf("4 uid-%s main 137", id))
	f.Container(id, id+"-c2", "main")
	f.Become(id+"-c2", critest.Running, 0)
	l.await(t, fmt.Sprintf("2 uid-%s main 0", id), fmt.Sprintf("3 uid-%s main 0", id))
	f.Remove(id)
	l.await(t, fmt.Sprintf("5 uid-%s  0", id))
}

func TestEventsAreReported(t *testing.T) {
	f := critest.New(t)
	f.Start()
	f.Pod("other", "", t.TempDir(), "10.244.0.8")
	l := watchFake(t, f)
	for end := time.Now().Add(patience); !f.Watched(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watcher does not connect")
		}
	}
	f.Pod("other2", "", t.TempDir(), "10.244.0.8")
	runPod(t, f, l, "a")
	runPod(t, f, l, "b")
	if n := l.count(); n != 14 {
		t.Errorf("%d reports, want 14", n)
	}
}

// All events of a pod that existed before the watch are reported, with the runtime's times.
func TestExistingPodIsReported(t *testing.T) {
	f := critest.New(t)
	f.Pod("a", "hello", t.TempDir(), "10.244.0.9")
	f.Container("a", "c1", "main")
	f.Become("c1", critest.Running, 0)
	f.Become("c1", critest.Exited, 1)
	f.Container("a", "c2", "main")
	f.Become("c2", critest.Running, 0)
	f.Start()
	l := watchFake(t, f)
	l.await(t, "1 uid-a  0", "2 uid-a main 0", "3 uid-a main 0", "4 uid-a main 1", "2 uid-a main 0", "3 uid-a main 0")
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 2; i < len(l.all); i++ {
		// Wall clock to monotonic and back costs some microseconds.
		if l.all[i].At < l.all[i-1].At-monotime.Time(time.Millisecond) {
			t.Errorf("report %d was at %d, the one before at %d", i, l.all[i].At, l.all[i-1].At)
		}
	}
}

// What happened while the runtime did not answer is reported once it does, and nothing twice.
func TestEventsAreReportedAfterAnOutage(t *testing.T) {
	f := critest.New(t)
	l := watchFake(t, f)
	f.Start()
	f.Pod("a", "hello", t.TempDir(), "10.244.0.9")
	f.Container("a", "c1", "main")
	f.Pod("b", "hello", t.TempDir(), "10.244.0.9")
	for end := time.Now().Add(patience); l.count() < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is reported")
		}
	}
	f.Stop()
	f.Remove("b")
	f.Become("c1", critest.Running, 0)
	f.Pod("c", "hello", t.TempDir(), "10.244.0.9")
	f.Start()
	want := map[string]bool{"1 uid-a": true, "2 uid-a": true, "3 uid-a": true, "1 uid-b": true, "5 uid-b": true,
		"1 uid-c": true}
	for end := time.Now().Add(patience); l.count() < len(want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %+v", l.all)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.all {
		if k := fmt.Sprintf("%d %s", s.Event, s.Pod.ID); want[k] {
			delete(want, k)
		} else {
			t.Errorf("got %q, which is wrong or repeated", k)
		}
	}
}

// A runtime without events is polled, seldom while nothing happens.
func TestRuntimeWithoutEventsIsPolled(t *testing.T) {
	f := critest.New(t)
	f.NoEvents = true
	f.Start()
	l := watchFake(t, f)
	for end := time.Now().Add(patience); f.Listed() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the runtime is not polled")
		}
	}
	before, begin := f.Listed(), time.Now()
	time.Sleep(2 * pollQuiet)
	if n, most := f.Listed()-before, int(time.Since(begin)/pollQuiet)+1; n > most {
		t.Errorf("polled %d times in a quiet time, at most %d expected", n, most)
	}
	runPod(t, f, l, "a")
}

func TestHurryPollsMoreOften(t *testing.T) {
	f := critest.New(t)
	f.NoEvents = true
	f.Start()
	w, err := New(Config{Endpoint: f.Path, OnPodReport: func(runtime.PodReport) {}, netns: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	// Without Hurry it takes five times pollQuiet, always. On a machine that stalls, it takes that long now and then.
	for tries := 1; ; tries++ {
		before, begin := f.Listed(), time.Now()
		w.Hurry()
		for end := begin.Add(patience); f.Listed() < before+5; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("polled less than five times")
			}
		}
		took := time.Since(begin)
		if took <= 3*pollQuiet {
			break
		}
		if tries == 3 {
			t.Fatalf("polled five times in %v: that is not often", took)
		}
	}
}

func TestNewRefusesInvalidEndpoints(t *testing.T) {
	for _, bad := range []string{"", "containerd.sock", "tcp://127.0.0.1:1", "unix://relative"} {
		if _, err := New(Config{Endpoint: bad}); err == nil {
			t.Errorf("New accepts %q", bad)
		}
	}
}

func TestNamespaceOfAVerboseStatus(t *testing.T) {
	there, self := t.TempDir(), os.Getpid()
	own := fmt.Sprintf("/proc/%d/ns/net", self)
	spec := `{"pid":%d,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"%s"}]}}}`
	for _, c := range []struct{ info, want string }{
		{fmt.Sprintf(spec, self, there), there},
		{fmt.Sprintf(spec, self, "/none/such"), own},
		{fmt.Sprintf(spec, 0, "/none/such"), ""},
		{fmt.Sprintf(`{"pid":%d}`, self), own},
		{"", ""},
		{"{", ""},
	} {
		got, err := namespace(map[string]string{"info": c.info})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.info, got, err)
		}
	}
}

// FuzzNamespace parses any text as a runtime's verbose status.
func FuzzNamespace(f *testing.F) {
	f.Add(`{"pid":1,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/x"}]}}}`)
	f.Add(`{"pid":-1}`)
	f.Fuzz(func(t *testing.T, text string) {
		if path, err := namespace(map[string]string{"info": text}); err == nil && path == "" {
			t.Error("neither a path nor an error")
		}
	})
}

// A pod that is no service's is known by its UID.
func TestNetworkOfAPodIsFoundByItsUID(t *testing.T) {
	begin := time.Now()
	f := critest.New(t)
	f.Start()
	folder := t.TempDir()
	f.Pod("front", "", folder, "10.244.0.8")
	f.Pod("other", "hello", t.TempDir(), "10.244.0.9")
	w, err := New(Config{Endpoint: "unix://" + f.Path})
	if err != nil {
		t.Fatal(err)
	}
	defer w.conn.Close()
	addr, netns, created, err := w.Network(t.Context(), "uid-front")
	if err != nil || addr.String() != "10.244.0.8" || netns != folder || created.Before(begin) {
		t.Errorf("%v, %s, %v, %v", addr, netns, created, err)
	}
	_, _, _, err = w.Network(t.Context(), "uid-x")
	if err == nil || !strings.Contains(err.Error(), `no pod with the UID "uid-x"`) {
		t.Errorf("a pod that is not there: %v", err)
	}
}
