// SPDX-License-Identifier: Apache-2.0

// Package mariadb is a client of MariaDB servers for tests.
package mariadb

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"wangell.loutres.me/test/testutil/netlab"
)

// Conn is a session with a server of debimage.MariaDB.
type Conn struct {
	db   *sql.DB
	conn *sql.Conn
	// patience limits each query.
	patience time.Duration
}

// Dial opens a session as user test in the database test. It and each query may take as long as patience.
func Dial(from *netlab.Namespace, address string, patience time.Duration) (*Conn, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.DBName, cfg.Net, cfg.Addr = "test", "test", "tcp", address
	cfg.Logger = &mysql.NopLogger{}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return from.Dialer().DialContext(ctx, network, address)
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	c := &Conn{db: sql.OpenDB(connector), patience: patience}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// One connection, so that nothing is repeated on another one after an answer was lost.
	if c.conn, err = c.db.Conn(ctx); err != nil {
		return nil, errors.Join(err, c.db.Close())
	}
	return c, nil
}

// Query runs SQL and returns the first column of its rows, once the server has acknowledged it.
func (c *Conn) Query(text string) (first []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	rows, err := c.conn.QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			return first, err
		}
		first = append(first, value)
	}
	return first, rows.Err()
}

// Close ends the session.
func (c *Conn) Close() {
	_ = c.conn.Close()
	_ = c.db.Close()
}
