// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

// No request of a storm is answered before the last one has arrived.
func TestStormAsksAllAtOnce(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	const count = 20
	l, err := n.Node.Listen(t.Context(), "tcp4", ":80")
	if err != nil {
		t.Fatal(err)
	}
	var missing atomic.Int32
	missing.Store(count)
	all := make(chan struct{})
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			if missing.Add(-1) == 0 {
				close(all)
			}
			<-all
		}
		fmt.Fprintln(w, "hello")
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	address := net.JoinHostPort(n.Node.Addr.String(), "80")

	socket := func() *netlab.Socket {
		s, err := n.Client().Socket()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	calls := make([]Call, count)
	for i := range calls {
		calls[i] = Call{Socket: socket(), Address: address, Request: Get(address)}
		if i%2 == 0 {
			if err := calls[i].Socket.Connect(address); err != nil {
				t.Fatal(err)
			}
			calls[i].Address = ""
		}
	}
	timings, errs := Storm(t.Context(), calls)
	for i, c := range calls {
		if errs[i] == nil {
			errs[i] = Finish(c.Socket)
		}
		if at := timings[i]; errs[i] != nil || at.FirstByte <= at.Connected || (at.Connected > 0) != (i%2 == 1) {
			t.Errorf("request %d: %+v, %v", i, timings[i], errs[i])
		}
	}

	refused := net.JoinHostPort(n.Node.Addr.String(), "81")
	_, errs = Storm(t.Context(), []Call{{Socket: socket(), Address: refused}})
	if !errors.Is(errs[0], syscall.ECONNREFUSED) {
		t.Errorf("where nothing listens: %v", errs)
	}
	if timing, err := RequestOnThread(t.Context(), n.Client(), refused, "localhost"); err == nil {
		t.Errorf("where nothing listens: %+v", timing)
	}
	timing, err := RequestOnThread(t.Context(), n.Client(), address, "localhost")
	if err != nil || timing.Connected <= 0 || timing.FirstByte <= timing.Connected || timing.Done < timing.FirstByte {
		t.Errorf("%+v, %v", timing, err)
	}
}
