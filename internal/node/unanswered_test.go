// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// A service is not idle while its only client waits for an answer, for however many idle timeouts no packet comes.
func TestServiceIsInUseWhileAClientWaitsForItsAnswer(t *testing.T) {
	w := newWorld(t)
	s := hello(0)
	s.IdleSeconds = 1
	if err := w.server.SetServices([]wire.Service{s}); err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	pod := w.pod(1)
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		fmt.Fprint(rw, "late")
	})}
	in(t, "pod1", func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err == nil {
			go srv.Serve(l)
		}
		return err
	})
	t.Cleanup(func() { srv.Close() })
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	got := make(chan string, 1)
	go func() {
		text, err := get(clientNet)
		if err != nil {
			text = err.Error()
		}
		got <- text
	}()
	<-asked
	time.Sleep(4 * time.Second) // four idle timeouts
	released := monotime.Now()
	close(answer)
	if text := <-got; text != "late" {
		t.Errorf("the client got %q", text)
	}
	if idle := await[*wire.Idle](w); idle.LastPacket < released.Add(-time.Second) { // as the request is
		t.Errorf("idle %v before the answer", released.Sub(idle.LastPacket))
	}
}
