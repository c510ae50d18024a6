// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/wire"
)

func TestSweepsOfALargeTableTakeATenthOfTheTime(t *testing.T) {
	for _, c := range []struct {
		took, pause time.Duration
		resting     bool
	}{
		{0, 5 * time.Second, false},
		{300 * time.Millisecond, 5 * time.Second, false},
		{2500 * time.Millisecond, 22500 * time.Millisecond, false},
		{2500 * time.Millisecond, time.Minute, true},
		{10 * time.Second, 90 * time.Second, true},
	} {
		if got := sweepPause(c.took, c.resting); got != c.pause {
			t.Errorf("pause after a sweep of %v, resting %t: %v, want %v", c.took, c.resting, got, c.pause)
		}
	}
}

func TestDaemonRestsOnlyWhileAllPodsStandStill(t *testing.T) {
	d := &daemon{services: map[netip.AddrPort]*service{}, freezing: frozenPods{pods: map[uint64]*frozenPod{}}}
	if d.rests(0) {
		t.Error("it rests without a pod, and would still look at nothing")
	}
	pods := []*pod{{id: 1, home: true, state: wire.PodServing}, {id: 2, home: true, state: wire.PodServing}}
	for i, p := range pods {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
		s := &service{addr: a, generation: 1, pods: map[uint64]*pod{p.id: p}}
		d.services[a] = s
		if d.rests(len(pods)) {
			t.Errorf("it rests while pod %d runs", p.id)
		}
		d.freezing.add(t.Context(), p, s, frozenPlace{cgroup: "/a"}, 1)
	}
	if !d.rests(len(pods)) {
		t.Error("it does not rest although all pods are frozen")
	}
	pods[0].state = wire.PodDraining
	if d.rests(len(pods)) {
		t.Error("it rests while a frozen pod is drained")
	}
}
