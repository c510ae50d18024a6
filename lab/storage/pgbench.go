// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/debimage"
)

// pgbench is PostgreSQL behind a pool of connections, and pgbench's bank transfers.
type pgbench struct{}

const (
	pgPort    = 5432
	pgBouncer = 6432
	pgUser    = 999
	pgClients = 20
	pgScale   = 10 // 150 MB
	// The pool has as many connections as the report's Passenger had processes, before and after.
	pgPool, pgPoolTuned = "6", "15"
)

func (pgbench) name() string  { return "pgbench" }
func (pgbench) title() string { return "Where a container writes: PostgreSQL with pgbench" }

func (pgbench) how() string {
	return fmt.Sprintf(`The application is PostgreSQL behind PgBouncer, which gives transactions a connection of a pool
of %s. In two containers, PgBouncer finds PostgreSQL by DNS. The clients are pgbench with %d connections and its
TPC-B-like transactions, at a scale of %d.`, pgPool, pgClients, pgScale)
}

func (pgbench) headline() string { return "" }

func (pgbench) tuning() string {
	return "pool of " + pgPoolTuned + " connections instead of " + pgPool + "; synchronous_commit off instead of on"
}

func (pgbench) limits() (cpu, memory string) { return "500m", "192Mi" }

func (pgbench) servers(c Case) []server {
	pool, commit := pgPool, "on"
	if c.Tuned {
		pool, commit = pgPoolTuned, "off"
	}
	one := server{name: "pool", recipe: pgRecipe(), port: pgBouncer, data: "/data",
		env: map[string]string{"PARTS": "both", "DATABASE": "127.0.0.1", "POOL": pool, "COMMIT": commit}}
	if !c.Split {
		return []server{one}
	}
	db := server{name: "database", recipe: pgRecipe(), port: pgPort, data: "/data",
		env: map[string]string{"PARTS": "database", "COMMIT": commit}}
	one.data = ""
	one.env = map[string]string{"PARTS": "pool", "DATABASE": "database", "POOL": pool}
	return []server{one, db}
}

func pgRecipe() debimage.Recipe {
	return debimage.Recipe{
		Name: "lab-pgbench", Packages: []string{"postgresql", "pgbouncer", "busybox-static"},
		Without: []string{"libllvm*", "libz3*", "postgresql-common*", "postgresql-client-common", "ssl-cert", "openssl",
			"locales", "libc-l10n", "netbase"},
		Users:      []debimage.User{{Name: "postgres", ID: pgUser, Home: "/data", Shell: "/bin/sh"}},
		User:       fmt.Sprintf("%d:%d", pgUser, pgUser),
		Entrypoint: []string{"/bin/sh", "/start"}, Port: pgBouncer, StopSignal: "SIGINT",
		Files: map[string]image.File{
			"/start":      {Data: []byte(pgStart)},
			"/usr/bin/sh": {Mode: fs.ModeSymlink | 0o777, Link: "busybox"},
			"/data":       {Mode: fs.ModeDir | 0o755, UID: pgUser, GID: pgUser},
			"/etc/hosts":  {Data: []byte("127.0.0.1 localhost\n")},
			// PgBouncer's resolver obeys it.
			"/etc/nsswitch.conf": {Data: []byte("hosts: files dns\n")},
		},
	}
}

const pgStart = `set -e
if [ $PARTS != pool ]; then
	bin=$(echo /usr/lib/postgresql/*/bin)
	if [ ! -e /data/db ]; then
		"$bin/initdb" --pgdata=/data/new --username=postgres --auth=trust --no-locale --encoding=UTF8 --no-sync
		echo "host all all all trust" >>/data/new/pg_hba.conf
		busybox mv /data/new /data/db
	fi
	set -- "$bin/postgres" -D /data/db -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off \
		-c synchronous_commit=$COMMIT
	if [ $PARTS = database ]; then exec "$@"; fi
	"$@" &
fi
busybox cat >/tmp/pool.ini <<END
[databases]
* = host=$DATABASE port=5432 user=postgres
[pgbouncer]
listen_addr = 0.0.0.0
listen_port = 6432
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = $POOL
max_client_conn = 200
END
exec pgbouncer -q /tmp/pool.ini
`

// pg is the command line of a client, with the connection to a server.
func (pgbench) pg(c client, program string, args ...string) []string {
	s := c.servers[0]
	return append([]string{program, "-h", s.Addr().String(), "-p", strconv.Itoa(int(s.Port())), "-U", "postgres"}, args...)
}

func (p pgbench) prepare(ctx context.Context, c client) error {
	err := until(ctx, func() error {
		_, err := output(c.ns.Command(ctx, p.pg(c, "psql", "-c", "select 1", "postgres")...))
		return err
	})
	if err != nil {
		return err
	}
	_, err = output(c.ns.Command(ctx, p.pg(c, "pgbench", "-i", "-q", "-s", strconv.Itoa(pgScale), "postgres")...))
	return err
}

func (p pgbench) measure(ctx context.Context, c client, l load) (Result, error) {
	args := []string{"-n", "-c", strconv.Itoa(pgClients), "-j", "2", "-T", strconv.Itoa(int(l.duration.Seconds())), "-l",
		"--log-prefix", filepath.Join(c.dir, "log"), "--failures-detailed"}
	if l.rate > 0 {
		args = append(args, "-R", strconv.FormatFloat(float64(l.rate)/60, 'f', 3, 64))
	}
	out, err := output(c.ns.Command(ctx, p.pg(c, "pgbench", append(args, "postgres")...)...))
	if err != nil {
		return Result{}, err
	}
	op := Operation{Name: "transaction", Seconds: l.duration.Seconds()}
	if m := pgFailed.FindSubmatch(out); m != nil {
		op.Errors, _ = strconv.Atoi(string(m[1])) // digits
	}
	logs, err := filepath.Glob(filepath.Join(c.dir, "log.*"))
	if err != nil {
		return Result{}, err
	}
	for _, log := range logs {
		if err := readPgLog(log, &op.Latencies); err != nil {
			return Result{}, err
		}
	}
	if len(op.Latencies) == 0 {
		return Result{}, errors.New("pgbench did no transaction")
	}
	return Result{Operations: []Operation{op}}, nil
}

var pgFailed = regexp.MustCompile(`number of failed transactions: (\d+)`)

// readPgLog reads a log of pgbench: client, transaction, time in µs (with the time that it waited behind its schedule),
// and more. Failed transactions have a word instead of the time; they are not in its report of latencies either.
func readPgLog(file string, into *Latencies) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return fmt.Errorf("log of pgbench: line %q", lines.Text())
		}
		if us, err := strconv.ParseInt(fields[2], 10, 64); err == nil {
			*into = append(*into, float64(time.Duration(us)*time.Microsecond)/float64(time.Millisecond))
		}
	}
	return errors.Join(lines.Err(), os.Remove(file))
}

func (pgbench) versions(ctx context.Context) (map[string]string, error) {
	return versionOf(ctx, "pgbench", "pgbench", "--version")
}
