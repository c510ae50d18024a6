// SPDX-License-Identifier: Apache-2.0

// Package mariadb is a client of MariaDB servers for tests. It speaks as much of the protocol as a login without a
// password and queries in text need (https://mariadb.com/kb/en/clientserver-protocol).
package mariadb

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Conn is a session with a server of debimage.MariaDB.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
	next byte // number of the next packet, in either direction
	// patience limits each query.
	patience time.Duration
}

// The first bytes of packets from the server.
const (
	isOK    = 0x00
	isNull  = 0xfb
	isFile  = 0xfb
	isEnd   = 0xfe // also the request for another way to log in
	isError = 0xff
)

// Capabilities of this client.
const (
	longPassword   = 1 << 0
	connectWithDB  = 1 << 3
	protocol41     = 1 << 9
	secureConnect  = 1 << 15
	pluginAuth     = 1 << 19
	utf8mb4        = 45
	longestPacket  = 1<<24 - 1
	comQuery       = 3
	passwordPlugin = "mysql_native_password"
)

// Dial opens a session as user test in the database test. It and each query may take as long as patience.
func Dial(from *netlab.Namespace, address string, patience time.Duration) (*Conn, error) {
	dialer := from.Dialer()
	dialer.Timeout = patience
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: conn, in: bufio.NewReader(conn), patience: patience}
	if err := c.login(); err != nil {
		return nil, errors.Join(fmt.Errorf("log in at %s: %w", address, err), conn.Close())
	}
	return c, nil
}

func (c *Conn) login() error {
	if err := c.conn.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return err
	}
	if _, err := c.receive(); err != nil { // the greeting, which only a password needs
		return err
	}
	answer := binary.LittleEndian.AppendUint32(nil,
		longPassword|connectWithDB|protocol41|secureConnect|pluginAuth)
	answer = binary.LittleEndian.AppendUint32(answer, longestPacket)
	answer = append(append(answer, utf8mb4), make([]byte, 23)...)
	answer = append(answer, "test\x00"+"\x00"+"test\x00"+passwordPlugin+"\x00"...)
	for {
		if err := c.send(answer); err != nil {
			return err
		}
		got, err := c.receive()
		switch {
		case err != nil:
			return err
		case got[0] == isOK:
			return nil
		case got[0] != isEnd:
			return fmt.Errorf("unexpected packet %#x", got)
		}
		answer = nil // no password, whichever the way to send it
	}
}

// Query runs SQL and returns the first column of its rows, once the server has acknowledged it.
func (c *Conn) Query(text string) (first []string, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return nil, err
	}
	c.next = 0
	if err := c.send(append([]byte{comQuery}, text...)); err != nil {
		return nil, err
	}
	head, err := c.receive()
	switch {
	case err != nil || head[0] == isOK:
		return nil, err
	case head[0] == isFile:
		return nil, errors.New("the server asks for a file")
	}
	if _, err := c.untilEnd(); err != nil { // descriptions of the columns
		return nil, err
	}
	rows, err := c.untilEnd()
	for _, row := range rows {
		value, err := firstValue(row)
		if err != nil {
			return first, err
		}
		first = append(first, value)
	}
	return first, err
}

// untilEnd returns the packets ahead of the one that ends a list.
func (c *Conn) untilEnd() (list [][]byte, err error) {
	for {
		p, err := c.receive()
		if err != nil || p[0] == isEnd && len(p) < 9 {
			return list, err
		}
		list = append(list, p)
	}
}

// firstValue returns the first column of a row. NULL is an error.
func firstValue(row []byte) (string, error) {
	n, size := uint64(row[0]), 1
	switch n {
	case isNull:
		return "", errors.New("the first column is NULL")
	case 0xfc, 0xfd, 0xfe: // the length has 2, 3 or 8 bytes
		size = map[uint64]int{0xfc: 3, 0xfd: 4, 0xfe: 9}[n]
		if len(row) < size {
			return "", io.ErrUnexpectedEOF
		}
		n = binary.LittleEndian.Uint64(append(bytes.Clone(row[1:size]), make([]byte, 8)...))
	}
	if n > uint64(len(row)-size) {
		return "", io.ErrUnexpectedEOF
	}
	return string(row[size : size+int(n)]), nil
}

// send sends a packet.
func (c *Conn) send(payload []byte) error {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	head[3] = c.next
	c.next++
	_, err := c.conn.Write(append(head, payload...))
	return err
}

// receive returns the next packet, which is not empty. What the server reports as an error is one.
func (c *Conn) receive() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	c.next = head[3] + 1
	n := uint32(head[0]) | uint32(head[1])<<8 | uint32(head[2])<<16
	if n == 0 || n == longestPacket {
		return nil, fmt.Errorf("a packet of %d bytes", n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.in, payload); err != nil {
		return nil, err
	}
	if payload[0] == isError {
		return nil, fmt.Errorf("server: %q", payload[min(len(payload), 3):])
	}
	return payload, nil
}

// Close ends the session.
func (c *Conn) Close() { _ = c.conn.Close() }
