// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/screen"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/syncbuf"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func named(name string, last time.Time) status.Status {
	var s status.Status
	s.Service.Namespace, s.Service.Name = "default", name
	s.Service.Spec.Port = 80
	s.Service.Status = v1alpha1.WangellServiceStatus{LoadBalancerIP: "10.46.100.2", State: "Cold"}
	if !last.IsZero() {
		s.Service.Status.LatestRequest = &metav1.Time{Time: last}
	}
	return s
}

func TestServicesAreATable(t *testing.T) {
	warm := named("web", now.Add(-90*time.Second))
	warm.Service.Status.State, warm.Service.Status.Replicas = "Warm", 1
	warm.Traffic.OpenFlows = 7
	broken := named("broken", time.Time{})
	broken.Service.Status.Message = "crashed:\nout\tof memory"
	wakes := []lifecycle.Waterfall{
		{Service: "default/web", Number: 1, Result: lifecycle.ResultWarm},
		{Service: "default/web", Number: 2, Result: lifecycle.ResultWarm,
			Phases: []lifecycle.Phase{{Name: lifecycle.PhaseReleased, At: 61234 * time.Microsecond}}},
		{Service: "default/broken", Number: 1, Result: lifecycle.ResultFailed},
	}
	files := []httpapi.BrokenFile{{File: "dir/b.yaml", Errors: []string{
		"dir/b.yaml:6:9: spec.port: want a number,\ngot text", "dir/b.yaml:7:1: another",
	}}}
	var out bytes.Buffer
	full := []status.Pressure{{Reason: v1alpha1.EventTableAlmostFull, Message: "the gate's table flows is almost full"}}
	if err := Services(&out, []status.Status{broken, warm}, files, full, wakes, now); err != nil {
		t.Fatal(err)
	}
	want := `SERVICE          ADDRESS          STATE     REPLICAS   LAST REQUEST   FLOWS   WAKES   LAST WAKE   MESSAGE
default/broken   10.46.100.2:80   Cold      0          never          0       1       failed      crashed: out of memory
default/web      10.46.100.2:80   Warm      1          1 min ago      7       2       61.2 ms     -
dir/b.yaml       -                Invalid   -          -              -       -       -           ` +
		"6:9: spec.port: want a number, got text (and 1 more)\n" +
		"TableAlmostFull: the gate's table flows is almost full\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// After a change of the leader, the table says since when it knows what happened.
func TestTableSaysWhereItsHistoryBegins(t *testing.T) {
	now := time.Date(2026, 5, 1, 15, 0, 0, 0, time.UTC)
	used, unused, fresh := named("a", now.Add(-time.Minute)), named("b", time.Time{}), named("c", time.Time{})
	began := time.Date(2026, 5, 1, 16, 2, 0, 0, time.FixedZone("", 2*3600))
	used.HistorySince, unused.HistorySince = began, began
	var out bytes.Buffer
	if err := Services(&out, []status.Status{used, unused, fresh}, nil, nil, nil, now); err != nil {
		t.Fatal(err)
	}
	want := `SERVICE     ADDRESS          STATE   REPLICAS   LAST REQUEST      FLOWS   WAKES   LAST WAKE   MESSAGE
default/a   10.46.100.2:80   Cold    0          1 min ago         0       -       -           -
default/b   10.46.100.2:80   Cold    0          not since 14:02   0       -       -           -
default/c   10.46.100.2:80   Cold    0          never             0       -       -           -
Wakes are counted since 14:02, when this controller began to lead.
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	if got := clock(began.AddDate(0, 0, -1), now); got != "2026-04-30 14:02" {
		t.Errorf("yesterday is %q", got)
	}
}

func TestAgoUsesTheLargestUnit(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s ago", 59 * time.Second: "59 s ago", time.Minute: "1 min ago",
		119 * time.Minute: "1 h ago", 47 * time.Hour: "47 h ago", 49 * time.Hour: "2 days ago",
	} {
		if got := ago(now.Add(-d), now); got != want {
			t.Errorf("ago(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestPullsAreShownUntilTheyEnd(t *testing.T) {
	p := pulls{}
	see := func(image string, done, total int64) {
		p.see(status.Event{Kind: status.EventPull, Image: image, Done: done, Total: total, Time: now})
	}
	p.see(status.Event{Kind: status.EventReport, Image: "x"})
	see("b", 1e6, 2e6)
	see("a", 0, 0)
	lines := p.lines(now)
	if len(lines) != 2 || !strings.HasSuffix(lines[0], " a") || !strings.Contains(lines[1], "1.0 / 2.0 MB b") {
		t.Errorf("got %q", lines)
	}
	see("b", 2e6, 2e6)
	if lines := p.lines(now); len(lines) != 1 {
		t.Errorf("after the end of one: %q", lines)
	}
	if lines := p.lines(now.Add(time.Hour)); len(lines) != 0 {
		t.Errorf("long after the last news: %q", lines)
	}
}

// source is a Source under the control of a test.
type source struct {
	mu     sync.Mutex
	list   []status.Status
	events chan status.Event
}

func (s *source) Status() []status.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list
}
func (s *source) Pressure() []status.Pressure              { return nil }
func (s *source) Wakes(v1alpha1.Key) []lifecycle.Waterfall { return nil }
func (s *source) Subscribe(ctx context.Context) <-chan status.Event {
	context.AfterFunc(ctx, func() { close(s.events) })
	return s.events
}

// waitFor waits until a text was written.
func waitFor(t *testing.T, out *syncbuf.Buffer, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not shown", text)
		}
	}
}

func TestLiveShowsEventsAndTable(t *testing.T) {
	var out syncbuf.Buffer
	l := &Live{}
	l.screen = screen.New(&out, func() (int, int) { return 200, 50 }, l.current)
	s := &source{list: []status.Status{named("one", time.Time{})}, events: make(chan status.Event)}
	l.Follow(s)
	waitFor(t, &out, "default/one")
	s.mu.Lock()
	s.list = []status.Status{named("two", time.Time{})}
	s.mu.Unlock()
	s.events <- status.Event{Kind: status.EventPull, Image: "nginx", Done: 1, Total: 2, Time: time.Now()}
	waitFor(t, &out, "pulling")
	waitFor(t, &out, "default/two")
	if _, err := l.Write([]byte("a line of the log\n")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, &out, "a line of the log\n\npulling")
	l.Close(time.Minute)
}

func TestQueueDoesNotBlockOnItsReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	q := NewQueue(w)
	line := bytes.Repeat([]byte("x"), 1023)
	line = append(line, '\n')
	// More than a pipe and the queue hold: it would block for ever if it waited.
	for range 4096 {
		if n, err := q.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	q.Close(time.Millisecond)
	w.Close()
}

func TestQueueReportsWhatIsLost(t *testing.T) {
	release := make(chan struct{})
	var out syncbuf.Buffer
	q := NewQueue(writerFunc(func(p []byte) (int, error) {
		<-release
		return out.Write(p)
	}))
	big := bytes.Repeat([]byte("y"), queueSize)
	for range 5 { // one is being written, one waits; three do not fit
		_, _ = q.Write(big)
	}
	close(release)
	waitFor(t, &out, "yy")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, _ = q.Write([]byte("z\n"))
		q.mu.Lock()
		fits := q.lost == 0
		q.mu.Unlock()
		if fits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the queue stays full")
		}
	}
	q.Close(time.Minute)
	waitFor(t, &out, "lines lost")
	if !strings.HasSuffix(out.String(), "z\n") {
		t.Error("what was written last is missing")
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
