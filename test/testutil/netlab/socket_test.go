// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

func TestSocketBlocksItsThread(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	echo(t, n.Node, "7")
	address := n.Node.Addr.String()
	dial := func(port int) (*netlab.Socket, error) {
		s, err := n.Client().Socket()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		_, err = s.DialContext(testContext(t), "tcp4", fmt.Sprintf("%s:%d", address, port))
		return s, err
	}
	s, err := dial(7)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("ping\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(s).ReadString('\n'); err != nil || line != "ping\n" {
		t.Errorf("answer %q, %v", line, err)
	}
	if at, to := s.LocalAddr().String(), s.RemoteAddr().String(); at == to || to != address+":7" {
		t.Errorf("from %s to %s", at, to)
	}
	if _, err := dial(8); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nothing listens: %v", err)
	}

	for what, deadline := range map[string]time.Time{
		"comes": time.Now().Add(20 * time.Millisecond), "has passed": time.Unix(1, 0),
	} {
		s, err := dial(7)
		if err != nil {
			t.Fatal(err)
		}
		set := func() {
			if err := s.SetDeadline(deadline); err != nil {
				t.Error(err)
			}
		}
		if deadline.After(time.Now()) {
			set()
		} else {
			go set()
		}
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a deadline that %s: %v", what, err)
		}
	}

	// Nobody answers for an address that no host has.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s, err = n.Client().Socket()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.DialContext(ctx, "tcp4", "10.46.200.99:7"); err == nil {
		t.Error("connected to nobody")
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.SetDeadline(time.Time{}); err == nil {
		t.Error("a closed socket takes a deadline")
	}
}
