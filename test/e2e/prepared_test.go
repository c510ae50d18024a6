// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// prepared returns the pods of a service whose program waits to be started.
func (l *lab) prepared(t *testing.T, name string) (pods []string) {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(l.run, "pods", name+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		pod := filepath.Base(folder)
		root, path := podCgroup(t, pod)
		pids, _ := os.ReadFile(filepath.Join(root, path, "cgroup.procs")) // none without a cgroup
		for _, pid := range strings.Fields(string(pids)) {
			if program, _ := os.ReadFile("/proc/" + pid + "/comm"); string(program) == ".wangell-wait\n" {
				pods = append(pods, pod)
			}
		}
	}
	return pods
}

// untilPrepared waits until a service has a prepared pod, and returns it.
func (l *lab) untilPrepared(t *testing.T, name string) string {
	t.Helper()
	for end := time.Now().Add(e2e.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if pods := l.prepared(t, name); len(pods) == 1 {
			return pods[0]
		}
	}
	t.Fatalf("service %s: no pod is prepared", name)
	return ""
}

// A service whose pod is prepared and one without wake in turn. WANGELL_TEST_WAKES=40 measures more of their wakes.
func TestPreparedPodsServeWakes(t *testing.T) {
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("WANGELL_TEST_WAKES")); err == nil {
		rounds = n
	}
	l := newLab(t, 1)
	l.start(t, service{name: "cold"}, service{name: "ready", more: "sleep: {prepared: 1}"},
		service{name: "broken", more: "command: [/nowhere]\nsleep: {prepared: 1}"})
	t.Run("and say why if their program is missing", func(t *testing.T) {
		l.untilPrepared(t, "broken")
		refused(t, l.Client(), l.address(t, "broken"))
		message := l.until(t, "broken", "failure", isState("Failed")).Service.Status.Message
		wakes := l.must(t, "wakes", "broken")
		for _, want := range []string{"code 127", "/nowhere", serverTag, "spec.command"} {
			if !strings.Contains(message, want) || !strings.Contains(wakes, want) {
				t.Errorf("no %q in the message %q or in the wakes: %s", want, message, wakes)
			}
		}
	})
	took := map[string][]time.Duration{}
	taken := 0
	for range rounds {
		for _, name := range []string{"cold", "ready"} {
			pod := l.untilPrepared(t, "ready")
			e2e.MustAsk(t, l.Client(), l.address(t, name))
			s := l.until(t, name, "warm", func(s status.Status) bool { return s.Serving == 1 })
			if s.Pods[0].ID == pod {
				taken++
			}
			wakes := l.wakes(t, name)
			at, ok := wakes[len(wakes)-1].At(lifecycle.PhaseListening)
			if !ok {
				t.Fatalf("%s: %+v", name, wakes)
			}
			took[name] = append(took[name], at)
			l.must(t, "sleep", name)
			l.until(t, name, "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
		}
	}
	if taken == 0 { // one may wait a moment before the runtime knows it
		t.Error("no wake has taken a prepared pod")
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%s: listens after %v at the median, %v at most, of %d wakes", name, all[len(all)/2], all[len(all)-1], rounds)
	}
}
