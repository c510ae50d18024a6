// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/test/testutil/e2e"
)

func TestDaemonIsGivenTimeToReturn(t *testing.T) {
	a := absence{patience: daemonAway}
	at := monotime.Time(time.Hour)
	for i, look := range []struct {
		after time.Duration
		away  bool
		over  bool
	}{
		{0, false, false}, {time.Second, true, false}, {2 * time.Second, true, false},
		{2500 * time.Millisecond, false, false}, // it is back
		{3 * time.Second, true, false}, {4900 * time.Millisecond, true, false}, {5 * time.Second, true, true},
		{6 * time.Second, true, true}, {7 * time.Second, false, false}, {8 * time.Second, true, false},
	} {
		if over := a.isOver(look.away, at.Add(look.after)); over != look.over {
			t.Errorf("look %d: %v, want %v", i, over, look.over)
		}
	}
}

// countedThaws counts what is thawed.
type countedThaws struct {
	fakeCgroups
	n atomic.Int32
}

func (c *countedThaws) Thaw(string) error { c.n.Add(1); return nil }

// runThawer runs a Thawer that waits for no daemon to return.
func runThawer(t *testing.T, runDir string, c cgroups) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Thawer{RunDir: runDir, Log: slog.Default()}.run(ctx, c, 0)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

func TestPodsOfADaemonThatIsAwayAreThawed(t *testing.T) {
	runDir := t.TempDir()
	unlock, err := tryLock(runDir)
	if err != nil {
		t.Fatal(err)
	}
	records, c := freezeRecordsIn(runDir), &countedThaws{}
	for id := range uint64(3) {
		if err := records.write(id, frozenPlace{cgroup: "/pod"}); err != nil {
			t.Fatal(err)
		}
	}
	runThawer(t, runDir, c)
	time.Sleep(4 * thawerLooks) // it has looked
	if n := c.n.Load(); n != 0 {
		t.Errorf("%d pods are thawed while their daemon is there", n)
	}
	if err := unlock(); err != nil { // as the kernel does when it ends
		t.Fatal(err)
	}
	e2e.Eventually(t, "all pods run", func() (bool, string) {
		noted, err := records.read()
		return err == nil && len(noted) == 0 && c.n.Load() == 3, fmt.Sprint(noted, err, c.n.Load())
	})
	if unlock, err = lock(t.Context(), runDir, slog.Default()); err != nil { // for the next daemon
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// The daemon that comes back counts a pod as running that a Thawer has thawed.
func TestNextDaemonFindsThawedPodsRunning(t *testing.T) {
	w, _ := usedPod(t, 100)
	w.stop()
	w.withGate(func(g *gate.Gate) { // the daemon was killed after it had frozen the pod
		if err := g.SetFrozen(vip, 1, true); err != nil {
			t.Fatal(err)
		}
	})
	w.start()
	w.stop()
	w.withGate(func(g *gate.Gate) {
		if state, ok := g.PodFreeze(vip, 1); !ok || state != gate.PodRuns {
			t.Errorf("the gate has the pod as %v, %v", state, ok)
		}
	})
	w.start()
}

// withGate opens the gate of a daemon that has ended.
func (w *world) withGate(do func(*gate.Gate)) {
	w.t.Helper()
	c := Config{}
	for _, change := range w.changes {
		change(&c)
	}
	g, err := gate.Open(gate.Config{
		Dir: w.runDir, ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.46.100.0/24")},
		Interfaces: []string{"eth0"}, NodeAddr: c.NodeAddr, EncapPort: c.EncapPort,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	do(g)
	if err := g.Close(); err != nil {
		w.t.Fatal(err)
	}
}
