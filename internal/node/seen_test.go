// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestSightsAreToldAnew(t *testing.T) {
	var s sights
	var told []string
	send := func(m wire.Message) {
		seen := m.(*wire.PodReport)
		told = append(told, fmt.Sprintf("%s %s %s %d", seen.UID, seen.Netns, seen.Container, seen.Event))
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		told = nil
	}
	see := func(uid, netns, container string, sight runtime.PodEvent) {
		s.add(runtime.PodReport{Event: sight, Pod: runtime.Pod{ID: uid, Netns: netns}, Container: container}, send)
	}
	s.tell(send)
	expect()
	see("b", "n1", "", runtime.PodNetworkReady)
	see("b", "n1", "main", runtime.PodContainerCreated)
	see("b", "n1", "main", runtime.PodContainerStarted)
	see("b", "n1", "side", runtime.PodContainerCreated)
	see("a", "n2", "", runtime.PodNetworkReady)
	expect("b n1  1", "b n1 main 2", "b n1 main 3", "b n1 side 2", "a n2  1")
	s.tell(send)
	expect("a n2  1", "b n1  1", "b n1 main 3", "b n1 side 2")
	// The pod gets another network; the end of the first says nothing of the second.
	see("b", "n3", "", runtime.PodNetworkReady)
	see("b", "n1", "main", runtime.PodContainerExited)
	see("b", "n1", "", runtime.PodNetworkGone)
	told = nil
	s.tell(send)
	expect("a n2  1", "b n3  1")
	see("b", "n3", "", runtime.PodNetworkGone)
	see("a", "n2", "", runtime.PodNetworkGone)
	told = nil
	s.tell(send)
	expect()
}
