// SPDX-License-Identifier: Apache-2.0

// Package tcpserver serves connections in tests.
package tcpserver

import (
	"io"
	"net"
)

// Serve calls handle for each connection of a listener, on a goroutine of its own, and then closes the connection. It
// returns at once; the server ends with the listener.
func Serve(l net.Listener, handle func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// Echo sends back what it receives until the client has sent its FIN.
func Echo(c net.Conn) { _, _ = io.Copy(c, c) }
