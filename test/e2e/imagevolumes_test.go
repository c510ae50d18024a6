// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// Redis and PostgreSQL whose images declare their data as volumes, as those of Docker Hub do, lose nothing, although
// their manifests mount nothing: neither when they sleep, nor when kill -9 ends them, nor when their image changes.
func TestVolumesOfImagesLoseNothing(t *testing.T) {
	cache := debimage.Redis()
	cache.Name, cache.Volumes = "redis-volume", []string{"/data"}
	cache.Files = map[string]image.File{"/data": {Mode: fs.ModeDir | 0o755, UID: 999, GID: 999}}
	cache.Entrypoint = []string{"/usr/bin/redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/data",
		"--appendonly", "yes", "--appendfsync", "always"}
	db := debimage.Postgres()
	db.Name, db.Volumes = "postgres-volume", []string{"/var/lib/postgresql"}

	l := newLab(t, 1)
	redis, pg := debian(t, cache), debian(t, db)
	pg.more = postgres.Probe
	t.Cleanup(func() { // volumes outlive the instance, and the next test uses the same state folder
		for _, v := range []string{"redis-volume.image.data", "postgres-volume.image.var-lib-postgresql"} {
			if out, err := l.wangell("volume", "rm", "--force", v, "--state-dir", l.state); err != nil {
				t.Errorf("volume rm: %v: %s", err, out)
			}
		}
	})
	f := l.files(t)
	f.write(t, "services.yaml", manifest(redis, pg))
	l.startWith(t, "", "-f", f.dir)
	count := 0
	check := func(when string) {
		t.Helper()
		count++
		e2e.Eventually(t, "redis after "+when, func() (bool, string) {
			host, port, err := net.SplitHostPort(l.address(t, redis.name))
			if err != nil {
				t.Fatal(err)
			}
			out, err := runTool(t.Context(), l.Client(), "redis-cli", "-h", host, "-p", port, "incr", "visits")
			if err != nil || strings.Contains(out, "LOADING") {
				return false, fmt.Sprint(out, err)
			}
			if got := strings.TrimSpace(out); got != fmt.Sprint(count) {
				t.Errorf("redis after %s: counts %s visits, want %d", when, got, count)
			}
			return true, ""
		})
		if count == 1 {
			l.pgMust(t, pg.name, "create table acks (n int primary key)")
		}
		l.commit(t, pg.name, count)
		if rows := l.pgRows(t, pg.name, "select count(*) from acks"); !slices.Equal(rows, []string{fmt.Sprint(count)}) {
			t.Errorf("postgres after %s: %v rows, want %d", when, rows, count)
		}
	}
	check("the first wake")
	for _, name := range []string{redis.name, pg.name} {
		l.untilNoFlows(t, name)
		l.sleep(t, name)
	}
	check("sleep")
	for _, name := range []string{redis.name, pg.name} {
		l.crash(t, name)
	}
	check("kill -9")
	redis.more += "env:\n  - {name: CHANGED, value: 'yes'}\n"
	f.write(t, "services.yaml", manifest(redis, pg))
	l.until(t, redis.name, "the change", func(s status.Status) bool { return len(s.Service.Spec.Env) == 1 })
	check("a change")
	if got, want := l.volumes(t), []string{"default/postgres-volume.image.var-lib-postgresql",
		"default/redis-volume.image.data"}; !slices.Equal(got, want) {
		t.Errorf("volumes %v, want %v", got, want)
	}
}

// pgRows returns the rows of a query.
func (l *lab) pgRows(t *testing.T, name, sql string) (rows []string) {
	t.Helper()
	e2e.Eventually(t, sql, func() (bool, string) {
		p, err := postgres.Dial(l.Client(), l.address(t, name), e2e.Patience)
		if err != nil {
			return false, err.Error()
		}
		defer p.Close()
		rows, err = p.Query(sql)
		return err == nil, fmt.Sprint(err)
	})
	return rows
}
