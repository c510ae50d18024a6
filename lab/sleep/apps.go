// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"bufio"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/postgres"
)

// app is a program that is put to sleep.
type app struct {
	name   string
	recipe *debimage.Recipe // nil for the hello image
	port   int
	// spec is added to its manifest: lines of YAML, indented by two.
	spec string
	// lasting is set if it has a persistent volume, with which no pod can be prepared.
	lasting bool
	// fill gives a running server its data. Optional.
	fill func(ctx context.Context, from *netlab.Namespace, address string, quick bool) error
	// ask makes one request on a connection of its own.
	ask func(ctx context.Context, from *netlab.Namespace, address string) (probe.Timing, error)
}

//go:embed server.py
var pythonServer []byte

//go:embed server.bsh
var javaServer []byte

func apps() []app {
	nginx, redis, pg := debimage.Nginx(), debimage.Redis(), debimage.Postgres()
	python := debimage.Recipe{
		Name: "lab-sleep-python", Packages: []string{"python3", "python3-numpy"}, Port: 8080,
		Entrypoint: []string{"/usr/bin/python3", "/lab/server.py"},
		Env:        []string{"LD_LIBRARY_PATH=" + strings.Join(blas, ":")},
		Files:      map[string]image.File{"/lab/server.py": {Data: pythonServer}, "/etc/hosts": hosts},
	}
	java := debimage.Recipe{
		Name: "lab-sleep-java", Packages: []string{"default-jre-headless", "libbsh-java"}, Port: 8080,
		Entrypoint: []string{"/usr/lib/jvm/default-java/bin/java", "-XX:+UseSerialGC", "-cp", "/usr/share/java/bsh.jar",
			"bsh.Interpreter", "/lab/server.bsh"},
		Files: map[string]image.File{"/lab/server.bsh": {Data: javaServer}, "/etc/hosts": hosts},
	}
	return []app{
		{name: "hello", port: 8080, ask: get},
		{name: "nginx", recipe: &nginx, port: 8080, ask: get},
		{name: "redis", recipe: &redis, port: 6379, fill: fillRedis, ask: askRedis},
		{name: "postgres", recipe: &pg, port: 5432, ask: askPostgres, lasting: true,
			spec: "  volumes: [{name: data, persistent: {}}]\n" +
				"  volumeMounts: [{name: data, mountPath: /var/lib/postgresql}]\n"},
		{name: "python", recipe: &python, port: 8080, ask: get},
		{name: "java", recipe: &java, port: 8080, ask: get},
	}
}

// blas is where numpy finds its libraries: links to these folders are made by maintainer scripts, which do not run.
var blas = []string{
	"/usr/lib/x86_64-linux-gnu/blas", "/usr/lib/x86_64-linux-gnu/lapack",
	"/usr/lib/aarch64-linux-gnu/blas", "/usr/lib/aarch64-linux-gnu/lapack",
}

var hosts = image.File{Data: []byte("127.0.0.1 localhost\n")}

// states returns the states in which an app is measured.
func (a app) states() []string {
	return slices.DeleteFunc(slices.Clone(states), func(s string) bool { return a.lasting && s == statePrepared })
}

func appNames() (names []string) {
	for _, a := range apps() {
		names = append(names, a.name)
	}
	return names
}

func get(ctx context.Context, from *netlab.Namespace, address string) (probe.Timing, error) {
	return probe.RequestOnThread(ctx, from, address, address)
}

// Of redis there are redisKeys keys with redisValue bytes each, 100 MB without what Redis needs beside them.
const (
	redisKeys  = 100_000
	redisValue = 1000
)

// fillRedis writes values that compress to half their size, as text does.
func fillRedis(ctx context.Context, from *netlab.Namespace, address string, quick bool) error {
	conn, err := from.Dialer().DialContext(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	keys := redisKeys
	if quick {
		keys /= 10
	}
	failed := make(chan error, 1)
	go func() {
		lines := bufio.NewReader(conn)
		for range keys {
			if line, err := lines.ReadString('\n'); err != nil || line != "+OK\r\n" {
				failed <- fmt.Errorf("redis: SET: %q, %w", line, err)
				return
			}
		}
		failed <- nil
	}()
	out := bufio.NewWriter(conn)
	random := make([]byte, redisValue/2)
	for i := range keys {
		_, _ = rand.Read(random) // never fails
		if _, err := fmt.Fprintf(out, "SET k%d %s\r\n", i, hex.EncodeToString(random)); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), <-failed)
}

func askRedis(ctx context.Context, from *netlab.Namespace, address string) (t probe.Timing, err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	return t, probe.OnThread(from, func(dial probe.DialFunc) error {
		begin := time.Now()
		conn, err := dial(ctx, "tcp4", address)
		if err != nil {
			return err
		}
		t.Connected = time.Since(begin)
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if _, err := fmt.Fprint(conn, "GET k17\r\n"); err != nil {
			return err
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		t.FirstByte = time.Since(begin)
		if err == nil && !strings.HasPrefix(answer, "$") {
			err = fmt.Errorf("redis: GET: %q", answer)
		}
		return err
	})
}

// askPostgres logs in and asks one question. A server that is starting refuses both at first.
func askPostgres(ctx context.Context, from *netlab.Namespace, address string) (t probe.Timing, err error) {
	var begin time.Time
	for {
		err = probe.OnThread(from, func(dial probe.DialFunc) error {
			if begin.IsZero() {
				begin = time.Now()
			}
			return askPostgresOnce(ctx, dial, address, begin, &t)
		})
		if err == nil || ctx.Err() != nil || time.Since(begin) > probe.Timeout {
			return t, err
		}
		time.Sleep(time.Millisecond)
	}
}

func askPostgresOnce(ctx context.Context, dial probe.DialFunc, address string, begin time.Time, t *probe.Timing) error {
	conn, err := dial(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	session, err := postgres.Open(conn, probe.Timeout)
	if err != nil {
		return err
	}
	defer session.Close()
	if t.Connected == 0 {
		t.Connected = time.Since(begin)
	}
	rows, err := session.Query("select 6 * 7")
	t.FirstByte = time.Since(begin)
	if err == nil && strings.Join(rows, " ") != "42" {
		err = fmt.Errorf("postgres: 6 * 7 is %q", rows)
	}
	return err
}

// measured returns the apps that were measured, in the order of apps.
func measured(s Samples) []string {
	return slices.DeleteFunc(appNames(), func(name string) bool { return len(of(s, name, stateWarm, firstByte)) == 0 })
}
