// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
)

const composeFile = `name: sample
services:
  web:
    image: ${WEB}
    ports: ["8000:8080"]
    environment: {TARGET: "cache:6379"}
    depends_on: [cache, db]
  cache:
    image: ${CACHE}
    expose: ["6379"]
    user: "999:999"
  db:
    image: ${DB}
    expose: ["5432"]
    volumes: ["data:/var/lib/postgresql"]
    healthcheck: {test: exec /usr/lib/postgresql/*/bin/pg_isready --quiet --host=127.0.0.1, interval: 1s}
    labels: [a=b]
volumes: {data: {}}
`

// A web server, Redis and PostgreSQL of a Compose file serve, call each other by name, and keep their data.
func TestImportedComposeFileRuns(t *testing.T) {
	l := newLab(t, 1)
	env := fmt.Sprintf("WEB=%s\nCACHE=%s\nDB=%s\n", serverTag, debian(t, debimage.Redis()).image,
		debian(t, debimage.Postgres()).image)
	file, variables := filepath.Join(l.dir, "compose.yaml"), filepath.Join(l.dir, "images.env")
	for name, text := range map[string]string{file: composeFile, variables: env} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	services := filepath.Join(l.dir, "services.yaml")
	cmd := l.Node.Command(t.Context(), program, "import", file, "--env-file", variables, "-o", services)
	var notes bytes.Buffer
	cmd.Stderr = &notes
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, notes.String())
	}
	if !strings.Contains(notes.String(), "not translated:\n  services.db.labels: ") {
		t.Errorf("notes:\n%s", notes.String())
	}
	t.Cleanup(func() { // volumes outlive the instance, and the next test uses the same state folder
		if out, err := l.wangell("volume", "rm", "--force", "sample.data", "--state-dir", l.state); err != nil {
			t.Errorf("volume rm: %v: %s", err, out)
		}
	})
	l.startWith(t, "", "-f", services)
	e2e.MustAsk(t, l.Client(), netip.AddrPortFrom(l.Node.Addr, 8000).String())
	for _, name := range []string{"cache", "db"} {
		found, err := l.from(t, "web", "/resolve", url.Values{"name": {name}})
		if host, _, _ := strings.Cut(l.address(t, name), ":"); err != nil || found != fmt.Sprintf("[%q]", host) {
			t.Errorf("web finds %s at %s, %v", name, found, err)
		}
	}
	// Redis closes connections of HTTP clients.
	if out, err := l.from(t, "web", "/proxy", nil); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("web asks cache: %s, %v", out, err)
	}
	l.until(t, "cache", "wake by web", isState("Warm"))
	host, port, _ := strings.Cut(l.address(t, "cache"), ":")
	if out := tool(t, l.Client(), "redis-cli", "-h", host, "-p", port, "incr", "visits"); strings.TrimSpace(out) != "1" {
		t.Errorf("redis-cli: %q", out)
	}
	host, port, _ = strings.Cut(l.address(t, "db"), ":")
	psql := func(sql string) string {
		t.Helper()
		return strings.TrimSpace(tool(t, l.Client(), "psql", "-X", "-h", host, "-p", port, "-U", "postgres", "-Atqc", sql))
	}
	psql("create table visits (n int); insert into visits values (7)")
	l.untilNoFlows(t, "db")
	l.sleep(t, "db")
	if got := psql("select n from visits"); got != "7" {
		t.Errorf("after a sleep the database has %q", got)
	}
}
