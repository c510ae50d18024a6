// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestPodReportsAreSentAgainInEverySession(t *testing.T) {
	var reports podReports
	var sent []string
	send := func(m wire.Message) {
		r := m.(*wire.PodReport)
		sent = append(sent, fmt.Sprintf("%s %s %s %d", r.UID, r.Netns, r.Container, r.Event))
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(sent, want) {
			t.Errorf("sent %q, want %q", sent, want)
		}
		sent = nil
	}
	add := func(uid, netns, container string, event runtime.PodEvent) {
		pod := runtime.Pod{ID: uid, Netns: netns}
		reports.add(runtime.PodReport{Event: event, Pod: pod, Container: container}, send)
	}
	reports.sendAll(send)
	expect()
	add("b", "n1", "", runtime.PodNetworkReady)
	add("b", "n1", "main", runtime.PodContainerCreated)
	add("b", "n1", "main", runtime.PodContainerStarted)
	add("b", "n1", "side", runtime.PodContainerCreated)
	add("a", "n2", "", runtime.PodNetworkReady)
	expect("b n1  1", "b n1 main 2", "b n1 main 3", "b n1 side 2", "a n2  1")
	reports.sendAll(send)
	expect("a n2  1", "b n1  1", "b n1 main 3", "b n1 side 2")
	// The pod gets another network. The end of its first network does not affect the second.
	add("b", "n3", "", runtime.PodNetworkReady)
	add("b", "n1", "main", runtime.PodContainerExited)
	add("b", "n1", "", runtime.PodNetworkGone)
	sent = nil
	reports.sendAll(send)
	expect("a n2  1", "b n3  1")
	add("b", "n3", "", runtime.PodNetworkGone)
	add("a", "n2", "", runtime.PodNetworkGone)
	sent = nil
	reports.sendAll(send)
	expect()
}
