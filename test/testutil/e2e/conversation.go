// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Conversation is a connection to the tests' own server in mode lines, which greets with an Answer and then repeats
// each line. So an open connection is known to belong to a certain process.
type Conversation struct {
	*net.TCPConn
	// Reader reads what follows the greeting.
	Reader   *bufio.Reader
	Greeting Answer
}

// Converse connects and reads the greeting.
func Converse(d *netlab.Dialer, address string) (*Conversation, error) {
	c, err := Dial(d, address)
	if err != nil {
		return nil, err
	}
	k, err := Greeted(c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return k, nil
}

// Greeted reads the greeting of a connection.
func Greeted(c *net.TCPConn) (*Conversation, error) {
	k := &Conversation{TCPConn: c, Reader: bufio.NewReader(c)}
	line, err := k.Reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k.Greeting)
	}
	if err != nil {
		return nil, fmt.Errorf("greeting %q: %w", line, err)
	}
	return k, nil
}

// MustConverse is Converse from a namespace for a connection that must succeed. It is closed at the end of the test.
func MustConverse(t testing.TB, from *netlab.Namespace, address string) *Conversation {
	t.Helper()
	k, err := Converse(from.Dialer(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// Say sends a line and returns the line that comes back.
func (k *Conversation) Say(line string) (string, error) {
	if err := k.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(k, line+"\n"); err != nil {
		return "", err
	}
	return k.Reader.ReadString('\n')
}

// MustEcho fails the test unless the line comes back.
func (k *Conversation) MustEcho(t testing.TB, line string) {
	t.Helper()
	if got, err := k.Say(line); err != nil || got != line+"\n" {
		t.Fatalf("said %q, heard %q, %v", line, got, err)
	}
}

// End closes the connection in both directions. When it returns, the gate has seen both.
func (k *Conversation) End() error {
	err := errors.Join(k.SetDeadline(time.Now().Add(Patience)), k.CloseWrite())
	if err == nil {
		_, err = io.Copy(io.Discard, k.Reader)
	}
	return errors.Join(err, k.Close())
}
