// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Conn is a session with a PostgreSQL server: version 3 of its protocol, without TLS or a password. Unlike psql, it
// distinguishes an acknowledged commit from one whose answer was lost.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	// patience limits each query.
	patience time.Duration
}

// ServerError is an error that the server reports.
type ServerError struct{ severity, message string }

// Error implements error.
func (e ServerError) Error() string { return e.severity + ": " + e.message }

// Dial opens a session as user postgres. It and each query may take as long as patience.
func Dial(from *netlab.Namespace, address string, patience time.Duration) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := from.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return Open(conn, patience)
}

// Open is Dial on a connection that is there, which it closes if it fails.
func Open(conn net.Conn, patience time.Duration) (*Conn, error) {
	p := &Conn{conn, bufio.NewReader(conn), patience}
	startup := append(binary.BigEndian.AppendUint32(nil, 3<<16), "user\x00postgres\x00\x00"...)
	if _, err := p.ask(startup); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Query runs SQL and returns the first column of its rows, once the server has acknowledged it.
func (p *Conn) Query(sql string) ([]string, error) { return p.ask([]byte(sql+"\x00"), 'Q') }

// Close ends the session.
func (p *Conn) Close() {
	_ = p.conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = p.conn.Write([]byte{'X', 0, 0, 0, 4})
	_ = p.conn.Close()
}

// ask sends a message, whose kind the first one does not have, and reads up to ReadyForQuery.
func (p *Conn) ask(body []byte, kind ...byte) (rows []string, err error) {
	if err := p.conn.SetDeadline(time.Now().Add(p.patience)); err != nil {
		return nil, err
	}
	message := append(binary.BigEndian.AppendUint32(kind, uint32(len(body)+4)), body...)
	if _, err := p.conn.Write(message); err != nil {
		return nil, err
	}
	var reported error
	for {
		kind, body, err := p.receive()
		if err != nil {
			return nil, errors.Join(reported, err)
		}
		switch kind {
		case 'D':
			rows = append(rows, firstColumn(body))
		case 'E':
			reported = parseError(body)
		case 'R':
			if binary.BigEndian.Uint32(body) != 0 {
				return nil, errors.New("the server asks for a password")
			}
		case 'Z':
			return rows, reported
		}
	}
}

func (p *Conn) receive() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > 1<<24 {
		return 0, nil, fmt.Errorf("message %q of %d bytes", head[0], n)
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(p.r, body)
	return head[0], body, err
}

// firstColumn returns the first column of a DataRow; empty for NULL.
func firstColumn(body []byte) string {
	if n := int32(binary.BigEndian.Uint32(body[2:])); n > 0 {
		return string(body[6 : 6+n])
	}
	return ""
}

// parseError reads an ErrorResponse.
func parseError(body []byte) (e ServerError) {
	for field := range strings.SplitSeq(string(body), "\x00") {
		switch {
		case strings.HasPrefix(field, "S"):
			e.severity = field[1:]
		case strings.HasPrefix(field, "M"):
			e.message = field[1:]
		}
	}
	return e
}
