// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/postgres"
)

// writersTime is how long testPostgres goes on after one round of each disturbance of calmFaults and one node that dies
// and comes back: WANGELL_TEST_WRITERS.
func writersTime(t *testing.T) time.Duration {
	text := os.Getenv("WANGELL_TEST_WRITERS")
	if text == "" {
		return 0
	}
	return e2e.Must(time.ParseDuration(text))(t)
}

// testPostgres puts a PostgreSQL server to sleep, changes it, and kills its processes and its node, while clients
// commit rows. Its data are in a folder that all nodes share, as they would share a network volume: on each it is the
// same folder of this machine. No two servers ever run on the data, each commit that a client was told of is there, and
// the data are sound. What a power cut takes besides, pages that are not on a disk yet, stays here.
func testPostgres(t *testing.T) {
	length := writersTime(t)
	w := startWriters(t)
	clients := postgres.StartCommitters(lab.client, w.addr, 4)
	e2e.Eventually(t, "a commit of each client", func() (bool, string) { return clients.Begun(), clients.Told() })
	faults, servers := map[string]int{}, map[string]bool{w.server(t, ""): true}
	round := func(f writerFault) {
		t.Helper()
		server := w.server(t, "")
		begin := time.Now()
		f.do(w, t)
		faults[f.name]++
		if f.ends {
			server = w.server(t, server)
		}
		before := clients.Committed()
		e2e.Eventually(t, "commits after: "+f.name, func() (bool, string) {
			return clients.Committed() > before+8, fmt.Sprintf("%s; pods: %s", clients.Told(), w.pods())
		})
		servers[server] = true
		t.Logf("%-28s commits again after %v", f.name, time.Since(begin).Round(time.Millisecond))
	}
	short := time.Now()
	for _, f := range calmFaults {
		round(f)
	}
	round(nodeFaults[0])
	t.Logf("each once: %v", time.Since(short).Round(time.Second))
	for end, rounds := time.Now().Add(length), 0; time.Now().Before(end) && w.conflict() == "" &&
		clients.Wrong() == nil; rounds++ {
		if rounds%5 == 4 {
			round(nodeFaults[rounds/5%len(nodeFaults)])
			continue
		}
		round(calmFaults[w.random.IntN(len(calmFaults))])
		time.Sleep(time.Duration(w.random.IntN(1000)) * time.Millisecond) // any point of what follows
	}
	clients.Stop()
	t.Logf("%v; %d servers; %d commits in %d sessions; %s", faults, len(servers), clients.Committed(),
		clients.Sessions(), clients.Told())
	if err := clients.Wrong(); err != nil {
		t.Error(err)
	}
	if text := w.conflict(); text != "" {
		t.Errorf("two servers ran at the same time: %s", text)
	}
	clients.Check(t)
	if err := postgres.Check(t.Context(), lab.client, w.addr); err != nil {
		t.Error(err)
	}
}

// writers is the service that testPostgres disturbs.
type writers struct {
	key, addr string
	dir       string // has the data, and the program that runs the server
	image     string
	version   int
	random    *rand.Rand
}

// startWriters starts the service and creates its table.
func startWriters(t *testing.T) *writers {
	t.Helper()
	w := &writers{key: "default/ledger", dir: e2e.Must(os.MkdirTemp(folder, "writers-"))(t), image: pushDebian(t,
		debimage.Postgres()), random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))}
	if err := postgres.BuildOnly(filepath.Join(w.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Mkdir(w.data(), 0o700), os.Chown(w.data(), postgres.UID, postgres.UID)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	lab.apply(t, w.manifest())
	w.addr = lab.address(t, w.key)
	var c *postgres.Conn
	e2e.Eventually(t, "a session", func() (bool, string) {
		var err error
		c, err = postgres.Dial(lab.client, w.addr, e2e.Patience)
		return err == nil, fmt.Sprint(err)
	})
	defer c.Close()
	e2e.Must(c.Query("create table acks (client int, n int, primary key (client, n))"))(t)
	return w
}

func (w *writers) data() string { return filepath.Join(w.dir, "data") }

// conflict returns what servers wrote that met another one on the same data; empty if none did.
func (w *writers) conflict() string { return postgres.Conflict(w.data()) }

// manifest is the service, of the current version. Its node is in the environment, as the pod has always one name.
func (w *writers) manifest() string {
	_, name, _ := strings.Cut(w.key, "/")
	doc := fmt.Sprintf(`image: %s
port: 5432
targetPort: 5432
idleTimeout: 600
wakeTimeout: 120
terminationGracePeriodSeconds: 20
env:
- {name: VERSION, value: "%d"}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
volumes:
- {name: bin, hostPath: {path: %s/bin}}
- {name: data, hostPath: {path: %s}}
volumeMounts:
- {name: bin, mountPath: /only, readOnly: true}
- {name: data, mountPath: /var/lib/postgresql}
`, w.image, w.version, w.dir, w.data()) + postgres.Probe + postgres.Only
	return "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: " + name +
		", namespace: default}\nspec:\n  " + strings.ReplaceAll(strings.TrimSuffix(doc, "\n"), "\n", "\n  ") + "\n"
}

// server waits for a server that is another one than before, and returns when it has started.
func (w *writers) server(t *testing.T, before string) (started string) {
	t.Helper()
	e2e.Eventually(t, "another server than "+before, func() (bool, string) {
		c, err := postgres.Dial(lab.client, w.addr, 5*time.Second) // the one before may have died in silence
		if err != nil {
			return false, err.Error()
		}
		defer c.Close()
		rows, err := c.Query("select pg_postmaster_start_time()")
		if err != nil || len(rows) != 1 {
			return false, fmt.Sprintf("%q, %v", rows, err)
		}
		started = rows[0]
		return started != before, started
	})
	return started
}

// pods tells of the service's pods: names, UIDs and nodes.
func (w *writers) pods() string {
	_, name, _ := strings.Cut(w.key, "/")
	out, err := lab.kubectl("", "get", "pods", "-n", "default", "-l", "wangell.loutres.me/service="+name, "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.nodeName}{"\n"}{end}`)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out)
}

// pod waits until the service has one pod on a node, and returns its UID and the node.
func (w *writers) pod(t *testing.T) (uid string, at *node) {
	t.Helper()
	e2e.Eventually(t, w.key+": one pod", func() (bool, string) {
		is := w.pods()
		if f := strings.Fields(is); len(f) == 3 {
			uid, at = f[1], lab.node(f[2])
		}
		return at != nil, is
	})
	return uid, at
}

// kubectl runs a command that a disturbance before may have made pointless.
func (w *writers) kubectl(t *testing.T, stdin string, args ...string) {
	t.Helper()
	if _, err := lab.kubectl(stdin, args...); err != nil {
		t.Log(err)
	}
}

// writerFault is a disturbance.
type writerFault struct {
	name string
	ends bool // the server; a sleep does not if a client comes first
	do   func(*writers, *testing.T)
}

// calmFaults leave the nodes alone.
var calmFaults = []writerFault{
	{"sleep", false, func(w *writers, t *testing.T) {
		w.kubectl(t, "", "scale", "wgs", "-n", "default", "ledger", "--replicas=0")
	}},
	{"change of the manifest", true, func(w *writers, t *testing.T) {
		w.version++
		e2e.Must(lab.kubectl(w.manifest(), "apply", "-f", "-"))(t)
	}},
	{"deletion of the pod", true, func(w *writers, t *testing.T) {
		w.kubectl(t, "", "delete", "pod", "-n", "default", "ledger-single", "--wait=false", "--ignore-not-found")
	}},
	{"kill of the postmaster", true, func(w *writers, t *testing.T) {
		uid, _ := w.pod(t)
		if pid, err := processOf(uid, "postgres\x00-D"); err != nil {
			t.Log(err) // it has ended by itself
		} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Error(err)
		}
	}},
	{"kill of the leader", false, func(w *writers, t *testing.T) {
		w.kubectl(t, "", "delete", "pod", "-n", productNamespace, lab.leader(t), "--grace-period=0", "--force")
	}},
}

// nodeFaults cut the power of the node of the pod. The next pod, if it is another one, starts once Kubernetes knows
// that the node is off.
var nodeFaults = []writerFault{
	{"node dies and comes back", true, func(w *writers, t *testing.T) {
		_, at := w.pod(t)
		lab.command(t, "node-kill", at.name)
		w.comesBack(t, at)
	}},
	{"node dies, taint", true, func(w *writers, t *testing.T) {
		w.moves(t, func(at *node) {
			e2e.Must(lab.kubectl("", "taint", "node", at.name, outOfService+"=nodeshutdown:NoExecute"))(t)
		})
	}},
	{"node dies, Node is deleted", true, func(w *writers, t *testing.T) {
		w.moves(t, func(at *node) { e2e.Must(lab.kubectl("", "delete", "node", at.name))(t) })
	}},
}

// moves kills the node of the pod and tells Kubernetes that it is off; not before, its pod starts on another node.
func (w *writers) moves(t *testing.T, tell func(*node)) {
	t.Helper()
	uid, at := w.pod(t)
	lab.command(t, "node-kill", at.name)
	e2e.Must(lab.kubectl("", "wait", "node", at.name, "--for=condition=Ready=Unknown",
		"--timeout="+e2e.Patience.String()))(t)
	if is := w.pods(); !strings.Contains(is, uid) || strings.Contains(is, "\n") {
		t.Errorf("pods while %s is lost: %q, want %s alone", at.name, is, uid)
	}
	tell(at)
	e2e.Eventually(t, "a pod on another node", func() (bool, string) {
		is := w.pods()
		f := strings.Fields(is)
		return len(f) == 3 && f[1] != uid && f[2] != "" && f[2] != at.name, is
	})
	w.comesBack(t, at)
}

// comesBack starts a node that was killed.
func (w *writers) comesBack(t *testing.T, at *node) {
	t.Helper()
	lab.command(t, "node-start", at.name)
	w.kubectl(t, "", "taint", "node", at.name, outOfService+"-") // it may have none
	lab.waitDaemons(t)
}

// pushDebian builds the image of a recipe, pushes it to the cluster's registry, and returns its name there.
func pushDebian(t *testing.T, r debimage.Recipe) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // packages are downloaded
	defer cancel()
	built := e2e.Must(debimage.Build(ctx, r))(t)
	path := r.Name + ":v1"
	to := e2e.Must(name.ParseReference(lab.Registry.PushAddress+"/"+path, name.Insecure))(t)
	if err := remote.Write(to, built.Image, remote.WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	return "registry.cluster.local:5000/" + path
}
