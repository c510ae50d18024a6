// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// Committers are clients of a PostgreSQL server that insert rows (client, n) with n counting up, one by one, and
// remember which of them the server has acknowledged. Each has sessions of random length, and a new one when it has
// lost one.
type Committers struct {
	from    *netlab.Namespace
	address string
	ended   chan struct{}
	group   sync.WaitGroup
	acked   [][]int // of each client, once it has ended

	count, sessions atomic.Int64
	begun           atomic.Int64 // clients that have a commit

	mu       sync.Mutex
	errs     map[string]int // errors that ended sessions, and how often
	mistaken error          // the first commit that was missing
}

// StartCommitters starts clients of a server on a host.
func StartCommitters(from *netlab.Namespace, address string, clients int) *Committers {
	c := &Committers{from: from, address: address, ended: make(chan struct{}), acked: make([][]int, clients),
		errs: map[string]int{}}
	for i := range clients {
		c.group.Go(func() { c.commit(i) })
	}
	return c
}

// Stop ends all clients.
func (c *Committers) Stop() {
	close(c.ended)
	c.group.Wait()
}

// commit is one client, until Stop.
func (c *Committers) commit(client int) {
	for n := 1; ; {
		select {
		case <-c.ended:
			return
		default:
		}
		if err := c.session(client, &n); err != nil {
			c.mu.Lock()
			c.errs[class(err)]++
			c.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// session inserts rows from *n on in one session, up to 10*8^client of them. The last row of the session before must be
// there.
func (c *Committers) session(client int, n *int) error {
	const patience = 5 * time.Second // a session may die in silence
	p, err := Dial(c.from, c.address, patience)
	if err != nil {
		return err
	}
	defer p.Close()
	c.sessions.Add(1)
	acked := &c.acked[client]
	if len(*acked) > 0 {
		last := (*acked)[len(*acked)-1]
		rows, err := p.Query(fmt.Sprintf("select count(*) from acks where client = %d and n = %d", client, last))
		if err != nil {
			return err
		}
		if !slices.Equal(rows, []string{"1"}) {
			c.mistake(fmt.Errorf("client %d: row %d was acknowledged, and the next session finds %q of it", client, last, rows))
		}
	}
	for range 10 << (3 * client) {
		select {
		case <-c.ended:
			return nil
		default:
		}
		this := *n
		*n++ // also if the answer is lost: the row may be there
		if _, err := p.Query(fmt.Sprintf("insert into acks values (%d, %d)", client, this)); err != nil {
			return err
		}
		*acked = append(*acked, this)
		c.count.Add(1)
		if len(*acked) == 1 {
			c.begun.Add(1)
		}
	}
	return nil
}

func (c *Committers) mistake(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mistaken == nil {
		c.mistaken = err
	}
}

// class is an error without its variable parts.
func class(err error) string {
	var server ServerError
	if errors.As(err, &server) {
		return server.Error()
	}
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+1:]
}

// Sessions returns the number of sessions so far.
func (c *Committers) Sessions() int64 { return c.sessions.Load() }

// Begun reports whether each client has had a commit acknowledged.
func (c *Committers) Begun() bool { return c.begun.Load() == int64(len(c.acked)) }

// Committed returns the number of commits that were acknowledged so far.
func (c *Committers) Committed() int64 { return c.count.Load() }

// Wrong returns the first violation; nil if there is none.
func (c *Committers) Wrong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for text := range c.errs {
		if strings.Contains(text, StartingUp) {
			return fmt.Errorf("a client was told: %s", text)
		}
	}
	return c.mistaken
}

// Told returns what ended sessions, and how often.
func (c *Committers) Told() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, text := range slices.Sorted(maps.Keys(c.errs)) {
		parts = append(parts, fmt.Sprintf("%d × %s", c.errs[text], strings.TrimSpace(text)))
	}
	return "sessions ended by: " + strings.Join(parts, ", ")
}

// Check looks at all rows, after Stop: each that was acknowledged is there.
func (c *Committers) Check(t *testing.T) {
	t.Helper()
	p, err := Dial(c.from, c.address, e2e.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for client, acked := range c.acked {
		rows, err := p.Query(fmt.Sprintf("select n from acks where client = %d order by n", client))
		if err != nil {
			t.Fatal(err)
		}
		there := make(map[int]bool, len(rows))
		for _, row := range rows {
			n, err := strconv.Atoi(row)
			if err != nil {
				t.Fatal(err)
			}
			there[n] = true
		}
		missing := 0
		for _, n := range acked {
			if !there[n] {
				missing++
			}
		}
		if missing > 0 || len(acked) == 0 {
			t.Errorf("client %d: %d of %d commits are missing", client, missing, len(acked))
		}
		t.Logf("client %d: %d commits acknowledged, %d rows", client, len(acked), len(rows))
	}
}
