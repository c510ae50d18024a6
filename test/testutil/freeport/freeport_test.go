// SPDX-License-Identifier: Apache-2.0

package freeport

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestReservedPortIsGivenToNobodyElse(t *testing.T) {
	at := Reserve(t)
	if _, err := net.Dial("tcp4", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("before anybody listens: %v", err)
	}
	for range 30_000 { // of about 14,000 ports that the kernel prefers
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Addr().String(); got == at.String() {
			t.Fatalf("%s was given to somebody else", got)
		}
		l.Close()
	}
	l, err := net.Listen("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
