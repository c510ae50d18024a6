// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// sleepsOfVolume is how often TestPersistentVolumeLosesNothing puts its service to sleep, unless WANGELL_TEST_SLEEPS
// says otherwise.
const sleepsOfVolume = 6

// volumePostgres is a PostgreSQL server on a persistent volume.
func volumePostgres(t *testing.T, name, persistent string) service {
	t.Helper()
	s := debian(t, debimage.Postgres())
	s.name = name
	s.more = postgres.Probe + fmt.Sprintf("volumes:\n  - {name: data, persistent: {%s}}\n", persistent) +
		"volumeMounts:\n  - {name: data, mountPath: /var/lib/postgresql}\n"
	return s
}

// volumes returns what wangell volume ls lists, with flags of volume.
func (l *lab) volumes(t *testing.T) (names []string) {
	t.Helper()
	var list []volume.Info
	if err := json.Unmarshal([]byte(l.must(t, "volume", "ls", "--state-dir", l.state, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		names = append(names, v.ID().String())
	}
	return names
}

// commit inserts a row, again and again until a server has acknowledged it.
func (l *lab) commit(t *testing.T, name string, n int) {
	t.Helper()
	e2e.Eventually(t, "a commit", func() (bool, string) {
		p, err := postgres.Dial(l.Client(), l.address(t, name), e2e.Patience)
		if err != nil {
			return false, err.Error()
		}
		defer p.Close()
		_, err = p.Query(fmt.Sprintf("insert into acks values (%d) on conflict do nothing", n))
		return err == nil, fmt.Sprint(err)
	})
}

// A database on a volume loses no acknowledged commit, however its service ends: by going to sleep, by kill -9 of its
// processes, of containerd, of the daemon and of wangell up, by an end of wangell up, and by a power cut. The volume
// outlives its service, and goes with it only if asked. A full volume concerns nobody else.
func TestPersistentVolumeLosesNothing(t *testing.T) {
	sleeps := sleepsOfVolume
	if text := os.Getenv("WANGELL_TEST_SLEEPS"); text != "" {
		var err error
		if sleeps, err = strconv.Atoi(text); err != nil {
			t.Fatalf("WANGELL_TEST_SLEEPS: %v", err)
		}
	}
	l := newLab(t, 1)
	f := l.files(t)
	f.write(t, "kept.yaml", manifest(volumePostgres(t, "kept", "size: 384Mi")))
	f.write(t, "dropped.yaml", manifest(volumePostgres(t, "dropped", "retain: false")))
	u := l.startWith(t, "", "-f", f.dir)
	l.pgMust(t, "kept", "create table acks (n int primary key)")
	l.pgMust(t, "dropped", "create table acks (n int primary key)")

	kill := func(offspring bool, parts ...string) func() {
		return func() { l.kill(t, offspring, parts...) }
	}
	faults := []func(){
		kill(true, shimProcess...), kill(false, shimProcess...), kill(false, containerdProcess...),
		kill(false, daemonProcess...),
		func() {
			if err := u.kill(); err != nil {
				t.Fatal(err)
			}
			u = l.startWith(t, "", "-f", f.dir)
		},
		func() {
			if err := u.stop(); err != nil {
				t.Errorf("up: %v", err)
			}
			u = l.startWith(t, "", "-f", f.dir)
		},
		func() { l.cutPower(t, "kept", postgresServer) },
	}
	rows := 0
	for n := range max(sleeps, len(faults)) {
		l.commit(t, "kept", rows)
		rows++
		if n < len(faults) {
			faults[n]()
			l.commit(t, "kept", rows)
			rows++
		}
		e2e.Eventually(t, "sleep", func() (bool, string) {
			out, err := l.wangell("sleep", "kept")
			return err == nil, out
		})
		l.until(t, "kept", "no pod", func(s status.Status) bool { return len(s.Pods) == 0 })
		if mounts, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(mounts), l.state+"/volumes") {
			t.Fatalf("a volume is mounted while its service sleeps: %v\n%s", err, mounts)
		}
	}
	p, err := postgres.Dial(l.Client(), l.address(t, "kept"), e2e.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got, err := p.Query("select count(*) from acks"); err != nil || len(got) != 1 || got[0] != strconv.Itoa(rows) {
		t.Errorf("%v rows of %d, %v", got, rows, err)
	}
	if err := postgres.Check(t.Context(), l.Client(), l.address(t, "kept")); err != nil {
		t.Error(err)
	}
	l.fillVolume(t, p)
	l.moveVolume(t, f, rows)
}

// fillVolume fills the volume of kept.
func (l *lab) fillVolume(t *testing.T, p *postgres.Conn) {
	t.Helper()
	_, err := p.Query("create unlogged table big as select repeat(md5(i::text), 30) from generate_series(1, 1000000) i")
	if err == nil || !strings.Contains(err.Error(), "No space left on device") {
		t.Errorf("more than the volume holds: %v", err)
	}
	if _, err := p.Query("select 1"); err != nil {
		t.Errorf("the server after that: %v", err)
	}
	l.pgMust(t, "dropped", "create table big as select repeat('x', 1000) from generate_series(1, 1000)")
}

// moveVolume backs the volume of kept up, removes the services, and restores it for another service.
func (l *lab) moveVolume(t *testing.T, f files, rows int) {
	t.Helper()
	backup := filepath.Join(l.dir, "backup")
	args := []string{"--state-dir", l.state}
	run := func(more ...string) (string, error) { return l.wangell(append(more, args...)...) }
	out, err := run("volume", "backup", "kept.data", "-f", backup)
	if err == nil || !strings.Contains(err.Error(), "wangell sleep") {
		t.Errorf("backup of a volume in use: %v: %s", err, out)
	}
	l.must(t, "sleep", "kept")
	l.until(t, "kept", "no pod", func(s status.Status) bool { return len(s.Pods) == 0 })
	l.must(t, append([]string{"volume", "backup", "kept.data", "-f", backup}, args...)...)
	if out, err := run("volume", "rm", "kept.data"); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("removal of the volume of a service: %v: %s", err, out)
	}
	if got := l.volumes(t); !slices.Equal(got, []string{"default/dropped.data", "default/kept.data"}) {
		t.Errorf("volumes: %q", got)
	}
	f.remove(t, "dropped.yaml")
	f.remove(t, "kept.yaml")
	e2e.Eventually(t, "the volume that goes with its service", func() (bool, string) {
		got := l.volumes(t)
		return slices.Equal(got, []string{"default/kept.data"}), fmt.Sprint(got)
	})
	l.must(t, append([]string{"volume", "restore", "moved.data", "-f", backup}, args...)...)
	f.write(t, "moved.yaml", manifest(volumePostgres(t, "moved", "")))
	e2e.Eventually(t, "the other service", func() (bool, string) {
		out, err := l.wangell("wake", "moved")
		return err == nil, out
	})
	p, err := postgres.Dial(l.Client(), l.address(t, "moved"), e2e.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got, err := p.Query("select count(*) from acks"); err != nil || len(got) != 1 || got[0] != strconv.Itoa(rows) {
		t.Errorf("restored: %v rows of %d, %v", got, rows, err)
	}
	f.remove(t, "moved.yaml")
	e2e.Eventually(t, "removal of the volumes", func() (bool, string) {
		out, err := run("volume", "rm", "kept.data", "moved.data")
		return err == nil, fmt.Sprint(out, err)
	})
	if got := l.volumes(t); len(got) > 0 { // other tests remove theirs
		t.Errorf("left: %q", got)
	}
}

// A newcomer leaves the volume out. PostgreSQL writes some 40 MB when it makes a database.
func TestNewcomerIsWarnedOfWritesIntoTheLayer(t *testing.T) {
	l := newLab(t, 1)
	s := debian(t, debimage.Postgres())
	s.name, s.more = "newcomer", postgres.Probe
	f := l.files(t)
	f.write(t, "newcomer.yaml", manifest(s))
	u := l.startWith(t, "", "-f", f.dir)
	begin := time.Now()
	l.pgMust(t, "newcomer", "select 1")
	e := u.await(t, 0, "a warning", reports(status.SeverityWarning, "into its own layer"))
	t.Logf("after %v: %s", time.Since(begin).Round(time.Second), e.Text)
	for _, command := range []string{"ps", "why"} {
		args := []string{command}
		if command == "why" {
			args = append(args, "newcomer")
		}
		if out := l.must(t, args...); !strings.Contains(out, "mostly /var/lib/postgresql") ||
			!strings.Contains(out, "mountPath: /var/lib/postgresql}") {
			t.Errorf("%s: %s", command, out)
		}
	}
	// A limit ends the pod, with the reason, before the database is complete.
	s.more += "layer: {sizeLimit: 16Mi}\n"
	f.write(t, "newcomer.yaml", manifest(s))
	full := u.await(t, 0, "the end of a pod with a full layer", func(e status.Event) bool {
		return strings.Contains(e.Text, "its layer is full: ")
	})
	for _, want := range []string{"mostly /var/lib/postgresql", "spec.layer.sizeLimit is 16", "mount a volume at"} {
		if !strings.Contains(full.Text, want) {
			t.Errorf("%q does not say %q", full.Text, want)
		}
	}
}
