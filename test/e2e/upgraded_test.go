// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/websocket"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// openSocket opens a WebSocket to a service, through its Envoy.
func (l *lab) openSocket(t *testing.T, address string) *websocket.Conn {
	t.Helper()
	eventually(t, "Envoy is the front", func() bool {
		a, err := e2e.Ask(l.Client(), address)
		return err == nil && !strings.HasPrefix(a.Client, l.Client().Addr.String())
	})
	config, err := websocket.NewConfig("ws://"+address+"/socket", "http://"+address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(config, e2e.MustDial(t, l.Client(), address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sayOver has the server of a WebSocket repeat a message.
func sayOver(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	var got string
	if err := websocket.Message.Send(c, text); err != nil {
		t.Fatal(err)
	}
	if err := websocket.Message.Receive(c, &got); err != nil || got != text {
		t.Fatalf("%q, %v, want %q", got, err, text)
	}
}

// A WebSocket is in use while something is sent, and not while it is only open. A request is in use until it is
// answered, however silent.
func TestSilentWebSocketIsNoUse(t *testing.T) {
	l := newLab(t, 1)
	frozen := service{name: "frozen", more: "balancing: {level: Request}\nsleep: {freezeAfter: 2s}"}
	asleep := service{name: "asleep", idle: 8, more: "balancing: {level: Request}"}
	slow := service{name: "slow", idle: 8, more: "balancing: {level: Request}"}
	u := l.startShop(t, frozen, asleep, slow)

	answered := make(chan error, 1)
	address := l.address(t, "slow")
	l.openSocket(t, address).Close()
	go func() {
		_, err := e2e.Get(l.Client(), address, "/slow?for=25s")
		answered <- err
	}()
	last := l.openSocket(t, l.address(t, "asleep"))
	sayOver(t, last, "for the last time")

	c := l.openSocket(t, l.address(t, "frozen"))
	for i := range 3 {
		begin := u.now()
		sayOver(t, c, fmt.Sprint("message ", i))
		u.untilFrozen(t, begin, "frozen")
	}
	if s := l.service(t, "frozen"); len(s.Pods) != 1 || s.Pods[0].Traffic.OpenFlows == 0 {
		t.Errorf("a frozen pod with a WebSocket: %+v, want an open connection", s.Pods)
	}
	l.until(t, "asleep", "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
	if err := websocket.Message.Receive(last, new(string)); err == nil {
		t.Error("a WebSocket outlives its pod")
	}
	if err := <-answered; err != nil {
		t.Errorf("a request that takes longer than the idle timeout: %v", err)
	}
}
