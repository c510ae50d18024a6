// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// tick waits until the kernel's coarse clock has advanced.
func tick() {
	for begin := time.Now(); time.Since(begin) < 25*time.Millisecond; {
		time.Sleep(time.Millisecond)
	}
}

// lastUse returns when pod 1 of vip was used last.
func (w *world) lastUse() monotime.Time {
	w.Helper()
	c, err := w.g.PodCounters(vip, 1)
	w.must(err)
	return c.LastPacket
}

// A handshake that does not complete, whatever both sides repeat, and segments that do not fit their flow are no use:
// strangers can cause all of them.
func TestOnlySegmentsOfConnectionsAreUse(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	unused := func(what string) {
		t.Helper()
		if at := w.lastUse(); at != 0 {
			t.Errorf("%s: used at %v", what, at)
		}
	}
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	unused("SYN")
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	unused("repeated SYN")
	synack := w.fromPod(1, "SA", 5000, 1001)
	synack.options = synOptions
	for range 3 {
		w.wantRun(onPod1, synack.frame(), tcxRedirect)
		unused("SYN-ACK")
	}
	w.wantRun(onNIC, w.fromClient("A", 1001, 9999).frame(), tcxRedirect)
	unused("ACK of what the pod has not sent")
	w.wantRun(onNIC, w.fromClient("R", 77, 0).frame(), tcxRedirect)
	unused("forged RST")
	w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
	if w.lastUse() == 0 {
		t.Error("the handshake is complete: no use")
	}

	for name, segment := range map[string]struct {
		on program
		s  segment
	}{
		"data outside the window":        {onNIC, w.fromClient("PA", 900_000_000, 5001, 1, 2, 3)},
		"data without ACK":               {onNIC, w.fromClient("P", 1001, 0, 1, 2, 3)},
		"SYN":                            {onNIC, w.syn(4000)},
		"forged RST":                     {onNIC, w.fromClient("R", 4000, 0)},
		"ACK of what was not sent":       {onNIC, w.fromClient("A", 1001, 5_000_000)},
		"challenge ACK of the pod":       {onPod1, w.fromPod(1, "A", 5001, 1001)},
		"the pod's data of another flow": {onPod1, w.fromPod(1, "PA", 900_000_000, 1001, 1)},
	} {
		before := w.lastUse()
		tick()
		w.wantRun(segment.on, segment.s.frame(), tcxRedirect)
		if at := w.lastUse(); at != before {
			t.Errorf("%s is use", name)
		}
	}
	for name, segment := range map[string]struct {
		on program
		s  segment
	}{
		"data":                {onNIC, w.fromClient("PA", 1001, 5001, 1, 2, 3)},
		"data of the pod":     {onPod1, w.fromPod(1, "PA", 5001, 1001, 1, 2, 3)},
		"keepalive":           {onNIC, w.fromClient("A", 1000, 5001)},
		"the client's window": {onNIC, w.fromClient("A", 1001, 5001)},
	} {
		before := w.lastUse()
		eventually(t, func() error {
			w.wantRun(segment.on, segment.s.frame(), tcxRedirect)
			if w.lastUse() == before {
				return fmt.Errorf("%s is no use", name)
			}
			return nil
		})
	}
}
