// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
)

// emptyCgroup makes a cgroup without processes, in every hierarchy that freezes or has weights. Its name is that of a
// pod on a cluster.
func emptyCgroup(t *testing.T) (path string) {
	t.Helper()
	path = fmt.Sprintf("/poduid-%d", os.Getpid())
	for _, place := range []string{"", "freezer", "cpu"} {
		root := filepath.Join("/sys/fs/cgroup", place)
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue // no hierarchy
		}
		dir := filepath.Join(root, path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	}
	return path
}

// usedPod wakes a service, whose pod has answered a request and may be frozen after some seconds. cgroup is one to
// freeze in place of the pod's.
func usedPod(t *testing.T, freezeAfter uint32) (w *world, cgroup string) {
	t.Helper()
	cgroup = emptyCgroup(t)
	w = newWorld(t)
	s := hello(0)
	s.IdleSeconds, s.FreezeSeconds = 100, freezeAfter
	if err := w.server.SetServices([]wire.Service{s}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { _, err := get(clientNet); answered <- err }()
	await[*wire.Wake](w)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{w.pod(1)}})
	w.listen(1)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	return w, cgroup
}

// The controller waits for the answer to its last decision, which may follow the one before at any moment.
func TestLastOfSeveralFreezesIsAnswered(t *testing.T) {
	w, cgroup := usedPod(t, 100)
	seq := uint64(0)
	decide := func(frozen bool) {
		seq++
		m := &wire.Freeze{Service: vip, Seq: seq}
		if frozen { // however late it was used
			m.Pods = []wire.FrozenPod{{PodID: 1, LastPacket: monotime.Now().Add(time.Hour), Cgroup: cgroup}}
		}
		w.send(m)
	}
	answer := func() (frozen bool) {
		for {
			if m := await[*wire.Frozen](w); m.Seq == seq {
				return m.Frozen
			}
		}
	}
	for range 20 {
		decide(true)
		decide(false)
		if answer() {
			t.Fatal("it is frozen")
		}
		decide(true)
		decide(false)
		decide(true)
		if answer() {
			decide(false)
			answer()
		}
	}
}

// The controller may run on a machine with another clock, and returns the time of the last packet with the error of two
// estimates.
func TestPodIsFrozenUnlessItWasUsedSinceItWasIdle(t *testing.T) {
	w, cgroup := usedPod(t, 2)
	last := await[*wire.Idle](w).LastPacket
	seq := uint64(0)
	freeze := func(pods ...wire.FrozenPod) bool {
		seq++
		w.send(&wire.Freeze{Service: vip, Seq: seq, Pods: pods})
		for {
			if m := await[*wire.Frozen](w); m.Seq == seq {
				return m.Frozen
			}
		}
	}
	if !freeze(wire.FrozenPod{PodID: 1, LastPacket: last.Add(-10 * time.Millisecond), Cgroup: cgroup}) {
		t.Error("the packet after which it was idle keeps it from being frozen")
	}
	if freeze() {
		t.Error("it is not thawed")
	}
	if freeze(wire.FrozenPod{PodID: 1, LastPacket: last, Cgroup: cgroup}) {
		t.Error("it is frozen although it was thawed for a use")
	}
}

// fakeCgroups remembers which cgroups were thawed.
type fakeCgroups struct {
	thawed []string
	gone   map[string]bool
	weight uint64 // of each
}

func (c *fakeCgroups) Freeze(context.Context, string) error           { return nil }
func (c *fakeCgroups) Reclaim(context.Context, string) error          { return nil }
func (c *fakeCgroups) WorkingSet(string) (*freezer.WorkingSet, error) { return nil, freezer.ErrNoScan }
func (c *fakeCgroups) Memory(string) (m freezer.Memory, err error)    { return m, nil }
func (c *fakeCgroups) CPU(string) (time.Duration, error)              { return 0, nil }
func (c *fakeCgroups) Weight(string) (uint64, error)                  { return c.weight, nil }
func (c *fakeCgroups) RestoreWeight(_ string, former uint64) error    { c.weight = former; return nil }
func (c *fakeCgroups) Inside(string) (in freezer.Inside, _ error)     { return in, nil }
func (c *fakeCgroups) Holds(string, int) (bool, error)                { return true, nil }
func (c *fakeCgroups) Gone(cgroup string) bool                        { return c.gone[cgroup] }

func (c *fakeCgroups) Thaw(cgroup string) error {
	if c.gone[cgroup] {
		return errors.New("gone")
	}
	c.thawed = append(c.thawed, cgroup)
	return nil
}

func TestNotedPodsAreThawedWithTheGate(t *testing.T) {
	r := freezeRecordsIn(filepath.Join(t.TempDir(), "run"))
	c := &fakeCgroups{gone: map[string]bool{"/c": true}}
	if err := thawNoted(r, c); err != nil || len(c.thawed) > 0 {
		t.Errorf("without notes: %v, thawed %v", err, c.thawed)
	}
	want := map[uint64]frozenPlace{1: {cgroup: "/a"}, 1<<64 - 1: {"/b", "/run/netns/b"}, 3: {cgroup: "/c"}}
	for id, at := range want {
		if err := r.write(id, at); err != nil {
			t.Fatal(err)
		}
	}
	// One that its daemon was just writing when it was killed.
	if err := os.WriteFile(r.file(4), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noted, err := r.read()
	if err != nil || !maps.Equal(noted, want) {
		t.Errorf("noted %v, %v", noted, err)
	}
	for _, may := range []struct {
		cfg Config
		yes bool
	}{{Config{}, true}, {Config{CRI: "unix:///a", CgroupRoot: "/b"}, true}, {Config{CRI: "unix:///a"}, false}} {
		if err := may.cfg.mayThaw(r); (err == nil) != may.yes {
			t.Errorf("%+v: %v", may.cfg, err)
		}
	}
	if err := thawNoted(r, c); err != nil {
		t.Fatal(err)
	}
	slices.Sort(c.thawed)
	if !slices.Equal(c.thawed, []string{"/a", "/b"}) {
		t.Errorf("thawed %v", c.thawed)
	}
	if _, err := os.Stat(r.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the notes are left: %v", err)
	}
}

// A client waits for its answer while a packet has a pod thawed.
func TestPodRunsBeforeItsThawIsMadeKnown(t *testing.T) {
	c := &fakeCgroups{gone: map[string]bool{}}
	d := &daemon{cgroups: c, freezing: frozenPods{
		records: freezeRecordsIn(t.TempDir()), pods: map[uint64]*frozenPod{},
	}}
	add := func(id uint64, cgroup string) *frozenPod {
		at := frozenPlace{cgroup: cgroup}
		if err := d.freezing.records.write(id, at); err != nil {
			t.Fatal(err)
		}
		q := d.freezing.add(t.Context(), &pod{id: id}, &service{}, at, 1)
		q.settled = true
		return q
	}
	q, about, gone := add(1, "/a"), add(2, "/b"), add(3, "/c")
	q.frozen, gone.frozen, c.gone["/c"] = true, true, true

	q.mu.Lock() // its cgroup is being changed
	if d.resume(q) {
		t.Error("the reader of events has waited")
	}
	q.mu.Unlock()
	if !d.resume(q) || d.resume(about) || d.resume(gone) {
		t.Error("want the one pod to run that is frozen")
	}
	if !slices.Equal(c.thawed, []string{"/a"}) || q.ctx.Err() == nil || about.ctx.Err() != nil {
		t.Errorf("thawed %v", c.thawed)
	}
	// The next daemon would find it.
	noted, err := d.freezing.records.read()
	if err != nil || len(noted) != 3 || d.freezing.find(1) != q {
		t.Errorf("noted %v, %v", noted, err)
	}
	if d.resume(q) {
		t.Error("it was thawed twice")
	}
}

// Pods that are thawed at once have the processors for themselves until all of them can have answered.
func TestThawsAreMadeKnownTogetherAfterTheLast(t *testing.T) {
	begin := time.Now()
	u := thawReports{}
	u.add(&frozenPod{id: 1}, begin)
	if pods := u.take(begin.Add(thawReportAfter - 1)); pods != nil {
		t.Errorf("made known too early: %v", pods)
	}
	u.add(&frozenPod{id: 2}, begin.Add(thawReportAfter-1))
	for _, look := range []struct {
		after time.Duration
		ids   []uint64
	}{
		{thawReportAfter, nil}, {2*thawReportAfter + thawReportEach - 2, nil},
		{2*thawReportAfter + thawReportEach - 1, []uint64{1, 2}}, {time.Hour, nil},
	} {
		var ids []uint64
		for _, q := range u.take(begin.Add(look.after)) {
			ids = append(ids, q.id)
		}
		if !slices.Equal(ids, look.ids) {
			t.Errorf("after %v: pods %v, want %v", look.after, ids, look.ids)
		}
	}
}

func TestThawsAreMadeKnownAlthoughMoreAndMoreFollow(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		last time.Duration
		pods int
		want time.Duration
	}{
		{0, 1, thawReportAfter}, {5 * time.Millisecond, 100, 253 * time.Millisecond},
		{499 * time.Millisecond, 100, thawReportMost},
		{0, 1000, thawReportMost},
	} {
		if got := thawReportDue(begin, begin.Add(c.last), c.pods).Sub(begin); got != c.want {
			t.Errorf("%d pods in %v: after %v, want %v", c.pods, c.last, got, c.want)
		}
	}
}
