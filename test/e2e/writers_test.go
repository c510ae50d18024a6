// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// writersFor is how long TestPostgresIsNeverRunTwice disturbs the server, unless WANGELL_TEST_WRITERS says otherwise.
const writersFor = 25 * time.Second

// onlyPostgres is a PostgreSQL server that does not start beside another one on the same data.
func (l *lab) onlyPostgres(t *testing.T, version int, more string) service {
	t.Helper()
	if err := postgres.BuildOnly(filepath.Join(l.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	s := l.postgres(t, "writer", postgres.Probe+more)
	s.env = map[string]string{"VERSION": fmt.Sprint(version)}
	s.more = strings.NewReplacer(
		"volumes:\n", fmt.Sprintf("volumes:\n  - {name: bin, hostPath: {path: %s/bin}}\n", l.dir),
		"volumeMounts:\n", "volumeMounts:\n  - {name: bin, mountPath: /only, readOnly: true}\n",
	).Replace(s.more) + postgres.Only + "terminationGracePeriodSeconds: 20\n"
	return s
}

// conflict returns what servers wrote that met another one on the same data; empty if none did.
func (l *lab) conflict() string { return postgres.Conflict(filepath.Join(l.dir, "writer")) }

// Without the strategy Recreate a changed manifest starts the new server beside the old one. So the test below would
// notice it.
func TestTwoPostgresOnOneVolumeAreNoticed(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	f.write(t, "writer.yaml", manifest(l.onlyPostgres(t, 1, "updateStrategy: RollingUpdate\n")))
	l.startWith(t, "", "-f", f.dir)
	l.pgMust(t, "writer", "select 1")
	f.write(t, "writer.yaml", manifest(l.onlyPostgres(t, 2, "updateStrategy: RollingUpdate\n")))
	eventually(t, "the second server meets the first", func() bool { return l.conflict() != "" })
	l.until(t, "writer", "the old pod alone", hasPod("serving"))
}

// While clients commit rows, the service is put to sleep, its manifest changes, and processes are killed: the
// postmaster, its shim, containerd, the daemon, and wangell up. No two servers ever run on the data, each commit that a
// client was told of is there, and the data are sound.
func TestPostgresIsNeverRunTwice(t *testing.T) {
	length := writersFor
	if text := os.Getenv("WANGELL_TEST_WRITERS"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("WANGELL_TEST_WRITERS: %v: want a duration such as 30m", err)
		}
	}
	w := &writerWorld{lab: newLab(t, 1), random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))}
	w.files = w.lab.files(t)
	w.change(t)
	w.start(t)
	w.pgMust(t, "writer", "create table acks (client int, n int, primary key (client, n))")
	clients := postgres.StartCommitters(w.Client(), w.address(t, "writer"), 4)
	e2e.Eventually(t, "a commit of each client", func() (bool, string) { return clients.Begun(), clients.Told() })
	faults := map[string]int{}
	rounds := 0
	for end := time.Now().Add(length); time.Now().Before(end) && w.conflict() == "" && clients.Wrong() == nil; rounds++ {
		for range 1 + w.random.IntN(3) {
			f := writerFaults[w.random.IntN(len(writerFaults))]
			f.do(w, t)
			faults[f.name]++
			time.Sleep(time.Duration(w.random.IntN(400)) * time.Millisecond) // any point of what follows
		}
		since := clients.Committed()
		e2e.Eventually(t, fmt.Sprintf("commits after round %d", rounds), func() (bool, string) {
			return clients.Committed() > since, fmt.Sprintf("%+v; %s", w.service(t, "writer"), clients.Told())
		})
	}
	clients.Stop()
	t.Logf("%d rounds, %v; %d commits in %d sessions; %s", rounds, faults, clients.Committed(), clients.Sessions(),
		clients.Told())
	if err := clients.Wrong(); err != nil {
		t.Error(err)
	}
	if text := w.conflict(); text != "" {
		t.Errorf("two servers ran at the same time: %s", text)
	}
	clients.Check(t)
	w.sound(t)
}

// writerWorld is what TestPostgresIsNeverRunTwice disturbs.
type writerWorld struct {
	*lab
	files   files
	up      *up
	version int
	random  *rand.Rand
}

// start starts wangell up, or starts it again.
func (w *writerWorld) start(t *testing.T) {
	t.Helper()
	w.up = w.startWith(t, "", "-f", w.files.dir)
}

// change changes the manifest so that the pod is replaced.
func (w *writerWorld) change(t *testing.T) {
	t.Helper()
	w.version++
	w.files.write(t, "writer.yaml", manifest(w.onlyPostgres(t, w.version, "")))
}

// kill sends SIGKILL to the processes of the instance whose command line has all of the parts, or to their children. A
// disturbance before may have left none.
func (l *lab) kill(t *testing.T, offspring bool, parts ...string) {
	t.Helper()
	for _, p := range l.processes(parts...) {
		pids := []int{p.pid}
		if offspring {
			pids = children(p.pid)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Errorf("kill process %d of %q: %v", pid, p.command, err)
			}
		}
	}
}

// writerFaults are the disturbances.
var writerFaults = []struct {
	name string
	do   func(*writerWorld, *testing.T)
}{
	{"sleep", func(w *writerWorld, t *testing.T) {
		if _, err := w.wangell("sleep", "writer"); err != nil {
			t.Log(err) // it may be waking, or wait for its previous pod
		}
	}},
	{"change of the manifest", (*writerWorld).change},
	{"kill of the postmaster", func(w *writerWorld, t *testing.T) { w.kill(t, true, shimProcess...) }},
	{"kill of the shim", func(w *writerWorld, t *testing.T) { w.kill(t, false, shimProcess...) }},
	{"kill of containerd", func(w *writerWorld, t *testing.T) { w.kill(t, false, containerdProcess...) }},
	{"kill of the daemon", func(w *writerWorld, t *testing.T) { w.kill(t, false, daemonProcess...) }},
	{"kill of up", func(w *writerWorld, t *testing.T) {
		if err := w.up.kill(); err != nil {
			t.Fatal(err)
		}
		w.start(t)
	}},
	{"end of up", func(w *writerWorld, t *testing.T) {
		if err := w.up.stop(); err != nil {
			t.Errorf("up: %v", err)
		}
		w.start(t)
	}},
}

// sound looks at the whole data with pg_amcheck, once the service has a pod again.
func (w *writerWorld) sound(t *testing.T) {
	t.Helper()
	w.pgMust(t, "writer", "checkpoint")
	w.until(t, "writer", "one pod", func(s status.Status) bool { return len(s.Pods) == 1 })
	if err := postgres.Check(t.Context(), w.Client(), w.address(t, "writer")); err != nil {
		t.Error(err)
	}
}
