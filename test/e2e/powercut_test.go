// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/mariadb"
	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/postgres"
)

// session is a session with a database server.
type session interface {
	// Query returns the first column of the rows, once the server has acknowledged it.
	Query(sql string) ([]string, error)
	Close()
}

// database is a kind of database server.
type database struct {
	dial func(from *netlab.Namespace, address string) (session, error)
	// recovery is what it logs when it begins to recover.
	recovery string
}

var (
	postgresServer = database{func(from *netlab.Namespace, address string) (session, error) {
		return postgres.Dial(from, address, e2e.Patience)
	}, "not properly shut down"}
	mariaServer = database{func(from *netlab.Namespace, address string) (session, error) {
		return mariadb.Dial(from, address, e2e.Patience)
	}, "Starting crash recovery"}
)

// session opens a session. A server that has just begun to listen may refuse one.
func (l *lab) session(t *testing.T, name string, of database) (s session) {
	t.Helper()
	e2e.Eventually(t, "a session", func() (bool, string) {
		var err error
		s, err = of.dial(l.Client(), l.address(t, name))
		return err == nil, fmt.Sprint(err)
	})
	return s
}

func TestMariaDBLosesNothingInAPowerCut(t *testing.T) {
	s := debian(t, debimage.MariaDB())
	s.more = "volumes:\n  - {name: data, persistent: {size: 160Mi, retain: false}}\n" +
		"volumeMounts:\n  - {name: data, mountPath: /var/lib/mysql}\n"
	l := newLab(t, 1)
	f := l.files(t)
	f.write(t, "mariadb.yaml", manifest(s))
	l.startWith(t, "", "-f", f.dir)
	l.cutPower(t, s.name, mariaServer)
	f.remove(t, "mariadb.yaml")
	e2e.Eventually(t, "removal of the volume", func() (bool, string) {
		got := l.volumes(t)
		return len(got) == 0, fmt.Sprint(got)
	})
}

// cutPower replaces the disk of a database server's volume by what was on it at one moment while the server
// committed, as a power cut leaves it: without what the server, and the file system of the volume, had only in memory.
// The server must have every commit that a client was told of by then.
func (l *lab) cutPower(t *testing.T, name string, of database) {
	t.Helper()
	var acknowledged atomic.Int64
	p := l.session(t, name, of)
	if _, err := p.Query("create table cut (n int primary key)"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer p.Close()
		for n := int64(1); ; n++ {
			if _, err := p.Query(fmt.Sprintf("insert into cut values (%d)", n)); err != nil {
				return
			}
			acknowledged.Store(n)
		}
	}()
	const some = 100
	e2e.Eventually(t, "commits", func() (bool, string) {
		n := acknowledged.Load()
		return n >= some, fmt.Sprint(n)
	})

	disk := filepath.Join(l.state, "volumes", "default", name+".data", "disk")
	cut := filepath.Join(l.dir, "cut")
	path := l.cgroupOf(t, name)
	f := freezer.New("")
	if err := f.Freeze(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	want := acknowledged.Load()
	// The kernel may still write what is in memory. A copy that is equal to the disk afterwards is the disk of one moment.
	e2e.Eventually(t, "a copy of one moment", func() (bool, string) {
		if out, err := exec.Command("cp", "--sparse=always", disk, cut).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		out, err := exec.Command("cmp", disk, cut).CombinedOutput()
		return err == nil, string(out)
	})
	if err := f.Thaw(path); err != nil {
		t.Fatal(err)
	}
	l.kill(t, true, shimProcess...)
	<-ended
	e2e.Eventually(t, "sleep", func() (bool, string) {
		out, err := l.wangell("sleep", name)
		return err == nil, out
	})
	l.until(t, name, "no pod", func(s status.Status) bool { return len(s.Pods) == 0 })
	e2e.Eventually(t, "the volume to be unmounted", func() (bool, string) {
		mounts, err := os.ReadFile("/proc/mounts")
		return err == nil && !strings.Contains(string(mounts), filepath.Dir(disk)), string(mounts)
	})
	if out, err := exec.Command("cp", "--sparse=always", cut, disk).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	if err := os.Remove(cut); err != nil {
		t.Fatal(err)
	}

	recovered := strings.Count(l.must(t, "logs", name), of.recovery)
	q := l.session(t, name, of)
	defer q.Close()
	got, err := q.Query("select count(*) from cut")
	if err != nil || len(got) != 1 {
		t.Fatalf("%q, %v", got, err)
	}
	if n, err := strconv.ParseInt(got[0], 10, 64); err != nil || n < want {
		t.Errorf("after the power cut, %s of %d acknowledged commits are there (%v)", got[0], want, err)
	}
	if log := l.must(t, "logs", name); strings.Count(log, of.recovery) <= recovered {
		t.Errorf("the server did not recover, so the test tests nothing: %s", log)
	}
	if _, err := q.Query("drop table cut"); err != nil {
		t.Error(err)
	}
}

// cgroupOf returns the path of the cgroup of the only pod of a service, below the root of the hierarchies.
func (l *lab) cgroupOf(t *testing.T, name string) string {
	t.Helper()
	pods := l.service(t, name).Pods
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	root, path := podCgroup(t, pods[0].ID)
	if root == "" {
		t.Fatalf("pod %s has no cgroup", pods[0].ID)
	}
	return path
}

// podCgroup returns the root of a hierarchy, and the path of the cgroup of a pod below it; empty if the pod has none.
func podCgroup(t *testing.T, pod string) (root, path string) {
	t.Helper()
	for _, place := range []string{"", "freezer", "unified"} {
		root := filepath.Join(cgroup.DefaultRoot, place)
		found, err := filepath.Glob(filepath.Join(root, "wangell-*", pod))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 1 {
			return root, strings.TrimPrefix(found[0], root)
		}
	}
	return "", ""
}
