// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// dropped reports whether a connection request gets no answer at all for a second.
func dropped(from *netlab.Namespace, address string) bool {
	d := from.Dialer()
	d.Timeout = time.Second
	c, err := d.Dial("tcp", address)
	if err == nil {
		c.Close()
		return false
	}
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

// A client that may not connect wakes nothing and reaches nothing. A change holds for the next connection; connections
// that are open stay.
func TestAllowFromKeepsClientsOut(t *testing.T) {
	l := newLab(t, 2)
	friend, stranger := l.Clients[0], l.Clients[1]
	hello := func(from *netlab.Namespace) string {
		return manifest(service{name: "hello", more: "allowFrom: [" + from.Addr.String() + "/32]"})
	}
	f := l.files(t)
	f.write(t, "hello.yaml", hello(friend))
	l.startWith(t, "", "-f", f.dir)
	address := l.address(t, "hello")
	if !dropped(stranger, address) {
		t.Error("the stranger got an answer")
	}
	if n := len(l.wakes(t, "hello")); n != 0 {
		t.Errorf("the stranger caused %d wakes", n)
	}
	e2e.Eventually(t, "ps reports the stranger", func() (bool, string) {
		message := l.service(t, "hello").Service.Status.Message
		return strings.Contains(message, "denied, one of them from "+stranger.Addr.String()), message
	})
	open := e2e.HTTPClient(friend, true)
	before, err := e2e.AskBy(open, address)
	if err != nil {
		t.Fatal(err)
	}
	if !dropped(stranger, address) {
		t.Error("the stranger got an answer from a warm service")
	}
	f.write(t, "hello.yaml", hello(stranger))
	e2e.Eventually(t, "the stranger may connect", func() (bool, string) {
		return !dropped(stranger, address), "no answer"
	})
	if !dropped(friend, address) {
		t.Error("the former friend got an answer")
	}
	if after, err := e2e.AskBy(open, address); err != nil || after.Client != before.Client {
		t.Errorf("the open connection: %+v, then %+v (%v)", before, after, err)
	}
}
