// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// postgres is a PostgreSQL server whose data is in a folder of the lab that outlives its pods.
func (l *lab) postgres(t *testing.T, name, more string) service {
	t.Helper()
	s := debian(t, debimage.Postgres())
	l.makeDir(t, name, postgres.UID)
	s.name = name
	s.more = more + fmt.Sprintf("volumes:\n  - {name: data, hostPath: {path: %s/%s}}\n", l.dir, name) +
		"volumeMounts:\n  - {name: data, mountPath: /var/lib/postgresql}\n"
	return s
}

// pgCrowd has clients open sessions, the first at once and each later one a moment after the one before, and returns
// what those were told that got an error. One of them uses psql.
func (l *lab) pgCrowd(t *testing.T, name, sql, want string) (errs []string) {
	t.Helper()
	const clients, after = 10, 15 * time.Millisecond
	address := l.address(t, name)
	var mu sync.Mutex
	var group sync.WaitGroup
	ask := func(i int) (string, error) {
		if i == 0 {
			host, port, _ := strings.Cut(address, ":")
			out, err := runTool(t.Context(), l.Client(), "psql", "-X", "-h", host, "-p", port, "-U", "postgres", "-Atqc", sql)
			return strings.TrimSpace(out), err
		}
		time.Sleep(time.Duration(i) * after)
		p, err := postgres.Dial(l.Client(), address, e2e.Patience)
		if err != nil {
			return "", err
		}
		defer p.Close()
		rows, err := p.Query(sql)
		return strings.Join(rows, "\n"), err
	}
	for i := range clients {
		group.Go(func() {
			got, err := ask(i)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err.Error())
			} else if got != want {
				t.Errorf("%s: client %d: %s: %q, want %q", name, i, sql, got, want)
			}
		})
	}
	group.Wait()
	return errs
}

// crash kills the postmaster of a service, the only process that its shim has started, and waits for the pod's end.
func (l *lab) crash(t *testing.T, name string) {
	t.Helper()
	pod := l.until(t, name, "one pod", hasPod("serving")).Pods[0].ID
	shims := l.processes(append(shimProcess, pod)...)
	if len(shims) != 1 {
		t.Fatalf("shims of pod %s: %+v", pod, shims)
	}
	for _, pid := range children(shims[0].pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	l.until(t, name, "its end", func(s status.Status) bool { return len(s.Pods) == 0 })
}

// Clients find the server asleep, also after its postmaster was killed, so that it replays its log before it accepts
// connections. With readyWhen: Listen, the same clients are told that it starts up.
func TestPostgresNeverSaysThatItIsStartingUp(t *testing.T) {
	const wakes = 4
	l := newLab(t, 1)
	l.start(t, l.postgres(t, "probe", postgres.Probe), l.postgres(t, "listen", ""))
	for _, name := range []string{"probe", "listen"} {
		t.Run(name, func(t *testing.T) {
			var told []string
			crowd := func(sql, want string) {
				told = append(told, l.pgCrowd(t, name, sql, want)...)
				l.until(t, name, "warm", isState("Warm"))
			}
			crowd("select 1", "1") // the first pod creates the data
			// One checkpoint is the last for an hour, so that much is to be replayed.
			l.pgMust(t, name, "alter system set max_wal_size = '4GB'", "alter system set checkpoint_timeout = '1h'",
				"create table t (n int primary key, text text)")
			for range wakes {
				l.sleep(t, name)
				crowd("select count(*) from t", "0")
			}
			l.pgMust(t, name, "insert into t select n, repeat(md5(n::text), 16) from generate_series(1, 150000) n")
			l.crash(t, name)
			crowd("select count(*) from t", "150000")
			e2e.Eventually(t, "the end of the replay", func() (bool, string) {
				logs := l.must(t, "logs", name)
				return strings.Contains(logs, "redo done at"), logs
			})
			waits := 0
			for _, s := range told {
				if strings.Contains(s, postgres.StartingUp) {
					waits++
				}
			}
			t.Logf("%d of the clients of %d wakes were told that it starts up", waits, wakes+2)
			switch {
			case name == "listen" && waits == 0:
				t.Error("without a probe, no client was told that the server starts up")
			case name == "probe" && len(told) > 0:
				t.Errorf("clients were told: %q", told)
			}
			l.untilNoFlows(t, name)
			l.sleep(t, name)
		})
	}
}

// pgMust runs statements that must succeed. A server that has just begun to listen may refuse a session.
func (l *lab) pgMust(t *testing.T, name string, statements ...string) {
	t.Helper()
	var p *postgres.Conn
	e2e.Eventually(t, "a session", func() (bool, string) {
		var err error
		p, err = postgres.Dial(l.Client(), l.address(t, name), e2e.Patience)
		return err == nil, fmt.Sprint(err)
	})
	defer p.Close()
	for _, sql := range statements {
		if _, err := p.Query(sql); err != nil {
			t.Fatalf("%s: %s: %v", name, sql, err)
		}
	}
}
