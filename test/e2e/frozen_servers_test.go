// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// Their connections were open all the time, and a transaction was.
func TestRedisPostgreSQLAndNginxGoOnAfterTheyWereFrozen(t *testing.T) {
	l := newLab(t, 1)
	const sleep = "sleep: {freezeAfter: 1s}\n"
	redis, nginx := debian(t, debimage.Redis()), debian(t, debimage.Nginx())
	redis.more, nginx.more = sleep, sleep
	u := l.start(t, redis, nginx, l.postgres(t, "postgres", sleep))

	conn := e2e.MustDial(t, l.Client(), l.address(t, redis.name))
	defer conn.Close()
	reply := bufio.NewReader(conn)
	command := func(text, want string) {
		t.Helper()
		if _, err := fmt.Fprintf(conn, "%s\r\n", text); err != nil {
			t.Fatal(err)
		}
		if line, err := reply.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
			t.Fatalf("redis: %s: %q, %v, want %q", text, line, err, want)
		}
	}
	var p *postgres.Conn
	e2e.Eventually(t, "PostgreSQL accepts clients", func() (bool, string) { // it listens before it does
		var err error
		p, err = postgres.Dial(l.Client(), l.address(t, "postgres"), e2e.Patience)
		return err == nil, fmt.Sprint(err)
	})
	defer p.Close()
	query := func(sql, want string) {
		t.Helper()
		if rows, err := p.Query(sql); err != nil || strings.Join(rows, " ") != want {
			t.Fatalf("postgres: %s: %q, %v, want %q", sql, rows, err, want)
		}
	}
	web := e2e.HTTPClient(l.Client(), true)
	defer web.CloseIdleConnections()
	fetch := func() {
		t.Helper()
		if body, err := e2e.Fetch(web, l.address(t, nginx.name), "/"); err != nil || string(body) != "nginx\n" {
			t.Fatalf("nginx: %q, %v", body, err)
		}
	}

	query("create table kept (n int)", "")
	query("begin", "")
	for i := range 2 {
		begin := u.now()
		command(fmt.Sprintf("INCRBY n %d", i+1), fmt.Sprintf(":%d", []int{1, 3}[i]))
		query(fmt.Sprintf("insert into kept values (%d)", i), "")
		fetch()
		for _, name := range []string{redis.name, "postgres", nginx.name} {
			u.untilFrozen(t, begin, name)
		}
	}
	query("commit", "")
	query("select count(*) from kept", "2")
	query("checkpoint", "") // by a process of its own
	query("select count(*) from pg_stat_activity where backend_type in ('checkpointer', 'autovacuum launcher')", "2")
	command("INCRBY n 0", ":3")
	fetch()
	for _, name := range []string{redis.name, "postgres", nginx.name} {
		if n := len(l.wakes(t, name)); n != 1 {
			t.Errorf("%s was started %d times, want once", name, n)
		}
	}
}
