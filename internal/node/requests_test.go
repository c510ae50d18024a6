// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"testing"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

func TestAnswersAreSentTwiceWhenTheyChange(t *testing.T) {
	const now = monotime.Time(1e12)
	var a answers
	addr := netip.MustParseAddrPort("10.46.100.1:80")
	taken := func(at monotime.Time) (n int, last wire.PodAnswers) {
		for n < 10 {
			got, ok := a.take(addr, 7, at)
			if !ok {
				break
			}
			n, last = n+1, got
		}
		return n, last
	}
	if n, _ := taken(now); n != 0 {
		t.Errorf("sent %d times without a request", n)
	}
	open := uint32(3)
	a.add(envoy.Requests{Started: 5, Answered: [envoy.Classes]uint64{2: 2}, Open: &open}, now)
	a.add(envoy.Requests{Answered: [envoy.Classes]uint64{4: 1}}, now)
	want := wire.PodAnswers{Service: addr, PodID: 7, Open: 3, Started: 5, Answered: [wire.Classes]uint64{2: 2, 4: 1}}
	if n, got := taken(now); n != 2 || got != want {
		t.Errorf("sent %d times: %+v, want %+v", n, got, want)
	}
	a.add(envoy.Requests{Open: &open}, now)
	if n, _ := taken(now); n != 0 {
		t.Errorf("sent %d times although nothing has changed", n)
	}
	// Envoy does not report a pod without requests, or is gone.
	want.Open = 0
	if n, got := taken(now.Add(openFor + 1)); n != 2 || got != want {
		t.Errorf("sent %d times: %+v, want %+v", n, got, want)
	}
	a.sendAgain()
	if n, _ := taken(now.Add(openFor + 1)); n != 2 {
		t.Errorf("sent %d times to a new controller", n)
	}
}

func TestRequestsCountForThePodAtTheirAddress(t *testing.T) {
	at := netip.MustParseAddrPort("10.46.128.2:8080")
	s := &service{pods: map[uint64]*pod{1: {id: 1, addr: at}}}
	if s.answersOf(at) != &s.pods[1].answers {
		t.Error("not for the pod")
	}
	for _, other := range []netip.AddrPort{{}, netip.AddrPortFrom(at.Addr(), 81)} {
		if s.answersOf(other) != &s.answers {
			t.Errorf("%v is no pod", other)
		}
	}
}
