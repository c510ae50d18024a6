// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/internal/wire"
)

// listenAt has a pod listen on an address until the end of the test.
func (w *world) listenAt(pod, network, address string) net.Listener {
	w.t.Helper()
	var l net.Listener
	in(w.t, pod, func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	w.t.Cleanup(func() { l.Close() })
	return l
}

func TestControllerLearnsWhereElseAPodListens(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	local := w.listenAt("pod1", "tcp4", "127.0.0.1:8080")
	w.listenAt("pod1", "tcp4", ":9000")
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	expect := func(want ...string) {
		t.Helper()
		got := await[*wire.Sockets](w)
		var all []string
		for _, a := range got.At {
			all = append(all, a.String())
		}
		if got.Service != vip || got.PodID != 1 || !slices.Equal(all, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	expect("0.0.0.0:9000", "127.0.0.1:8080")
	w.send(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}}) // nothing new in this session
	local.Close()
	expect("0.0.0.0:9000") // it has changed
	w.listen(1)
	if l := await[*wire.Listening](w); l.PodID != 1 {
		t.Errorf("%+v", l)
	}
}

func TestRefusedProbeSaysWhereThePodListens(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	withProbe(t, &pod, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9000)}})
	w.listen(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	for {
		u := await[*wire.Unready](w)
		if u.Answer == "" { // no probe has ended yet
			continue
		}
		if !strings.Contains(u.Answer, "connection refused; the pod listens on 0.0.0.0:8080") {
			t.Errorf("unready: %q", u.Answer)
		}
		return
	}
}

func TestNameServerOfAPodIsNotItsProgram(t *testing.T) {
	d := localDiag(t)
	for _, c := range []struct {
		network, address string
		counts           bool
	}{
		{"tcp4", nameServer.String(), false}, {"tcp4", "127.0.0.2:0", true}, {"tcp6", "[::1]:0", true}, {"tcp", ":0", true},
	} {
		l, err := net.Listen(c.network, c.address)
		if err != nil {
			t.Fatal(err)
		}
		all, err := d.listening()
		if want := netip.MustParseAddrPort(l.Addr().String()); err != nil || slices.Contains(all, want) != c.counts {
			t.Errorf("%s: %v, %v; want it: %t", want, all, err, c.counts)
		}
		l.Close()
	}
}
