// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// logged has the daemon of a node report the end of a container's log.
func (w *world) logged(node, uid, container, text string) {
	w.r.ReportLog(runtime.PodLog{PodID: uid, Container: container, Node: node, Text: text})
}

// logs returns what Logs prints.
func (w *world) logs(options runtime.LogOptions) string {
	w.t.Helper()
	var out strings.Builder
	if err := w.r.Logs(w.t.Context(), "default/app", &out, options); err != nil {
		w.t.Fatal(err)
	}
	return out.String()
}

func all(container string) runtime.LogOptions {
	return runtime.LogOptions{Container: container, Tail: -1}
}

// What a program wrote that ended at once is kept when its pod is gone, also if the log comes after the pod's end.
func TestLogOfAPodThatIsGoneIsKept(t *testing.T) {
	w := newWorld(t, 0)
	for i, late := range []bool{false, true} {
		uid := fmt.Sprint("app-", i+1)
		w.up(uid)
		w.report(uid, exited)
		if e := get(w, w.r.Exits()); e.Code != 7 || e.LogTail != "" {
			t.Errorf("exit %+v: the log is for those who may read logs", e)
		}
		if !late {
			w.logged("n1", uid, "app", uid+": no configuration\n")
			w.logged("n2", uid, "app", "another node's\n")
		}
		if err := w.r.Stop(t.Context(), uid, time.Second); err != nil { // the API server has no such pod any more
			t.Fatal(err)
		}
		if late {
			w.logged("n1", uid, "app", uid+": no configuration\n")
			w.logged("n1", uid, "side", "of another container\n")
			w.logged("n1", "unknown", "app", "of an unknown pod\n")
		}
	}
	if got, want := w.logs(all("")), "app-1: no configuration\napp-2: no configuration\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	if got := w.logs(runtime.LogOptions{Tail: 1}); got != "app-2: no configuration\n" {
		t.Errorf("last line %q", got)
	}
	if got := w.logs(all("side")); got != "of another container\n" {
		t.Errorf("log of the other container %q", got)
	}
	if got := w.logs(all("none")); got != "" {
		t.Errorf("log of no container %q", got)
	}
}

// Where messages may have it, the exit of a crash waits for the end of the log, which comes from the daemon.
func TestCrashHasItsLogWhereMessagesMayHaveIt(t *testing.T) {
	w := newWorld(t, 0)
	w.r.cfg.LogsInMessages = true
	w.up("app-1")
	w.report("app-1", exited)
	nothing(w, "an exit without its log", w.r.Exits())
	w.logged("n1", "app-1", "side", "of another container\n")
	w.logged("n1", "app-1", "app", "no configuration\n")
	if e := get(w, w.r.Exits()); e.LogTail != "no configuration\n" {
		t.Errorf("exit %+v", e)
	}
}

// A pod that runs is asked for its log, and what is kept of its containers that have ended is not printed beside that.
func TestLogOfARunningPodComesFromKubelet(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.logged("n1", "app-1", "init", "done\n")
	if got := w.logs(all("init")); !strings.Contains(got, "fake logs") || strings.Contains(got, "done") {
		t.Errorf("log %q", got)
	}
	w.report("app-1", exited)
	get(w, w.r.Exits())
	w.logged("n1", "app-1", "app", "crashed\n")
	if got := w.logs(all("")); got != "crashed\n" {
		t.Errorf("log %q", got)
	}
}

func TestEndedLogsHaveBounds(t *testing.T) {
	var l endedLogs
	everything := func(string) bool { return false }
	line := strings.Repeat("x", 99) + "\n"
	for i := range 10 {
		l.put("default/a", fmt.Sprint("a", i), "main", fmt.Sprintln("log of", i))
	}
	if got := l.text("default/a", "main", -1, everything); !strings.HasPrefix(got, "log of 2\n") ||
		!strings.HasSuffix(got, "log of 9\n") || strings.Count(got, "\n") != maxEndedPods {
		t.Errorf("log %q", got)
	}
	for i := range 1000 {
		l.put("default/a", "a8", fmt.Sprint(i), "x\n")
	}
	if n := l.byUID["a8"].size(); n > runtime.MaxPodLog {
		t.Errorf("a pod with many containers has %d bytes", n)
	}
	l.put("default/a", "a9", "side", strings.Repeat(line, 100))
	l.put("default/a", "a9", "main", strings.Repeat(line, 200))
	if n := l.byUID["a9"].size(); n > runtime.MaxPodLog || n < runtime.MaxPodLog-2*len(line) {
		t.Errorf("a pod has %d bytes", n)
	}
	if side, _ := l.container("a9", "side"); len(side) > len(line) {
		t.Errorf("the container that ended first keeps %d bytes", len(side))
	}
	for i := range 3000 {
		l.put(v1alpha1.Key(fmt.Sprint("default/s", i)), fmt.Sprint("s", i), "main", strings.Repeat(line, 200))
		if l.bytes > maxEndedLogs || len(l.order) > maxEndedLogs/runtime.MaxPodLog+maxEndedPods+100 {
			t.Fatalf("%d bytes, %d entries", l.bytes, len(l.order))
		}
	}
	if l.bytes < maxEndedLogs-2*runtime.MaxPodLog || l.of["default/a"] != nil {
		t.Errorf("%d bytes, the oldest: %v", l.bytes, l.of["default/a"])
	}
	l.forget("default/s2999")
	if l.text("default/s2999", "main", -1, everything) != "" || l.byUID["s2999"] != nil {
		t.Error("a service's logs are not forgotten")
	}
	sum := 0
	for _, p := range l.byUID {
		sum += p.size()
	}
	if sum != l.bytes {
		t.Errorf("%d bytes, counted %d", sum, l.bytes)
	}
}
