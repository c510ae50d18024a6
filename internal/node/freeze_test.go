// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
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
