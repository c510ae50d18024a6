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
		seen := m.(*wire.Seen)
		told = append(told, fmt.Sprintf("%s %s %s %d", seen.UID, seen.Netns, seen.Container, seen.Sight))
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		told = nil
	}
	see := func(uid, netns, container string, sight runtime.Sight) {
		s.add(runtime.Seen{Sight: sight, Pod: runtime.Pod{ID: uid, Netns: netns}, Container: container}, send)
	}
	s.tell(send)
	expect()
	see("b", "n1", "", runtime.SightNetwork)
	see("b", "n1", "main", runtime.SightCreated)
	see("b", "n1", "main", runtime.SightStarted)
	see("b", "n1", "side", runtime.SightCreated)
	see("a", "n2", "", runtime.SightNetwork)
	expect("b n1  1", "b n1 main 2", "b n1 main 3", "b n1 side 2", "a n2  1")
	s.tell(send)
	expect("a n2  1", "b n1  1", "b n1 main 3", "b n1 side 2")
	// The pod gets another network; the end of the first says nothing of the second.
	see("b", "n3", "", runtime.SightNetwork)
	see("b", "n1", "main", runtime.SightExited)
	see("b", "n1", "", runtime.SightGone)
	told = nil
	s.tell(send)
	expect("a n2  1", "b n3  1")
	see("b", "n3", "", runtime.SightGone)
	see("a", "n2", "", runtime.SightGone)
	told = nil
	s.tell(send)
	expect()
}
