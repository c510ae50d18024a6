// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
)

func TestRequestFailsWithoutStatus200(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := []string{"", "SSH-2.0-x\r\n", "HTTP/1.0 404 Not Found\r\n\r\n"}
	go func() {
		for _, a := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			_, _ = io.WriteString(c, a)
			c.Close()
		}
	}()
	var d net.Dialer
	for _, a := range answers {
		if timing, err := Request(context.Background(), d.DialContext, l.Addr().String(), "localhost"); err == nil {
			t.Errorf("answer %q was accepted: %+v", a, timing)
		}
	}
	l.Close()
	if _, err := Request(context.Background(), d.DialContext, l.Addr().String(), "localhost"); err == nil {
		t.Error("the request succeeded although nothing listens")
	}
}
