// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// lab is a node with its clients, and the folders of an instance on the node.
type lab struct {
	*netlab.Net
	dir, run, state string
	foreign         map[string]bool // ids of the eBPF maps of others, as far as foreignMaps has seen them
}

// gateObjects are prefixes of the kernel's names of the gate's programs and maps.
var gateObjects = []string{
	"gate_", "services", "service_status", "addresses", "pods", "pod_", "flows", "ring_", "syn_", "maglev_tables",
	"home_nodes", "pending_queries", "query_budget", "parked_", "scratch", "nics", "listeners", "events", "counters",
	"recounts",
}

// newLab creates a network and folders. At the end of the test it checks that the machine is as before: namespaces,
// devices, addresses, routes, rules, mounts, pins, eBPF programs, maps and links, cgroups, processes, files.
func newLab(t *testing.T, clients int) *lab {
	t.Helper()
	n, err := netlab.New(netlab.Config{Clients: clients})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the network: %v", err)
		}
	})
	// The path of t.TempDir contains the test's name, which makes the paths of sockets too long.
	dir, err := os.MkdirTemp(folder, "t")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{Net: n, dir: dir, run: filepath.Join(dir, "run"), state: sharedState, foreign: map[string]bool{}}
	if err := os.Mkdir(l.temp(), 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := l.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.checkClean(t, before) })
	return l
}

// temp is the TMPDIR of the instance.
func (l *lab) temp() string { return filepath.Join(l.dir, "tmp") }

func (l *lab) scope() netlab.Scope {
	return netlab.Scope{
		Paths: []string{l.dir, sharedState}, Devices: []string{""}, Routes: true, BPF: gateObjects,
		Cgroups: []string{"wangell-" + hash8(l.run)}, Namespaces: []string{"wv" + hash8(hash8(l.run))[:5]},
	}
}

// hash8 computes names of cgroups and devices as the runtime does.
func hash8(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}

// snapshot takes a snapshot of the machine from inside the node.
func (l *lab) snapshot() (s netlab.Snapshot, err error) {
	err = l.Node.Do(func() error {
		s, err = netlab.TakeSnapshot(l.scope())
		return err
	})
	return s, err
}

// checkClean waits until the machine is as before, and removes the folders. It reports what is left behind and runs
// wangell down then, so that other tests can continue.
func (l *lab) checkClean(t *testing.T, before netlab.Snapshot) {
	t.Helper()
	var diff []string
	deadline := time.Now().Add(e2e.Patience)
	if t.Failed() {
		deadline = time.Now().Add(time.Second)
	}
	for ; ; time.Sleep(20 * time.Millisecond) {
		after, err := l.snapshot()
		if err != nil {
			t.Fatal(err)
		}
		diff = before.Diff(after)
		if strings.Contains(strings.Join(diff, " "), "eBPF") {
			foreign := l.foreignMaps()
			diff = slices.DeleteFunc(diff, func(s string) bool { return isForeign(s, foreign) })
		}
		if len(diff) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, d := range diff {
		t.Error("left behind:", d)
	}
	if _, err := os.Stat(l.run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("run folder: %v, want it gone", err)
	}
	left, err := os.ReadDir(l.temp())
	// A shim that a test has killed cannot remove the file with which runc tells it a PID.
	left = slices.DeleteFunc(left, func(d fs.DirEntry) bool { return strings.HasPrefix(d.Name(), "runc-process") })
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files: %v %v, want none", left, err)
	}
	if t.Failed() {
		if _, err := l.wangell("down"); err != nil {
			t.Log(err)
		}
	}
	if err := os.RemoveAll(l.dir); err != nil {
		t.Errorf("remove the folders: %v", err)
	}
}

// wangell runs a command of the program on the node and returns its standard output.
func (l *lab) wangell(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Patience)
	defer cancel()
	cmd := l.Node.Command(ctx, append(append([]string{program}, args...), "--run-dir", l.run)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+l.temp())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("wangell %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), err
}

// must is wangell for a command that must succeed.
func (l *lab) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.wangell(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// callAPI calls f with a client of the instance.
func (l *lab) callAPI(t *testing.T, f func(context.Context, *httpapi.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Patience)
	defer cancel()
	c := httpapi.NewClient(instance.ControlSocket(l.run))
	defer c.Close()
	if err := f(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// services returns the status of all services.
func (l *lab) services(t *testing.T) (list []status.Status) {
	t.Helper()
	l.callAPI(t, func(ctx context.Context, c *httpapi.Client) (err error) {
		list, err = c.Status(ctx)
		return err
	})
	return list
}

// service returns the status of a service in the namespace default.
func (l *lab) service(t *testing.T, name string) status.Status {
	t.Helper()
	list := l.services(t)
	for _, s := range list {
		if s.Service.Name == name && s.Service.Namespace == "default" {
			return s
		}
	}
	t.Fatalf("there is no service %s: %+v", name, list)
	panic("not reached")
}

// address returns the service address of a service, with its port.
func (l *lab) address(t *testing.T, name string) string {
	t.Helper()
	return view.Address(l.service(t, name))
}

// wakes returns the waterfalls of the last wakes of a service.
func (l *lab) wakes(t *testing.T, name string) (list []lifecycle.Waterfall) {
	t.Helper()
	l.callAPI(t, func(ctx context.Context, c *httpapi.Client) (err error) {
		list, err = c.Wakes(ctx, name)
		return err
	})
	return list
}

// sleep puts a service to sleep and checks that nothing of it runs.
func (l *lab) sleep(t *testing.T, name string) {
	t.Helper()
	l.callAPI(t, func(ctx context.Context, c *httpapi.Client) error { return c.Sleep(ctx, name) })
	if s := l.service(t, name); s.Service.Status.Replicas != 0 || len(s.Pods) != 0 {
		t.Fatalf("service %s after sleep: %+v, pods %+v", name, s.Service.Status, s.Pods)
	}
}

// until waits until the status of a service matches, and returns it.
func (l *lab) until(t *testing.T, name, what string, ok func(status.Status) bool) status.Status {
	t.Helper()
	for deadline := time.Now().Add(e2e.Patience); ; time.Sleep(20 * time.Millisecond) {
		s := l.service(t, name)
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("service %s: no %s: %+v, pods %+v, traffic %+v", name, what, s.Service.Status, s.Pods, s.Traffic)
		}
	}
}

// untilAsleep waits until a service has no pod.
func (l *lab) untilAsleep(t *testing.T, name string) {
	t.Helper()
	l.until(t, name, "sleep", func(s status.Status) bool { return s.Service.Status.Replicas == 0 && len(s.Pods) == 0 })
}

// untilNoFlows waits until the gate counts no open flow of a service.
func (l *lab) untilNoFlows(t *testing.T, name string) status.Status {
	t.Helper()
	return l.until(t, name, "the end of its flows", func(s status.Status) bool { return s.Traffic.OpenFlows == 0 })
}

// makeDir creates a folder of the lab that belongs to a user.
func (l *lab) makeDir(t *testing.T, name string, uid int) {
	t.Helper()
	path := filepath.Join(l.dir, name)
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chown(path, uid, uid)); err != nil {
		t.Fatal(err)
	}
}

// isState and hasPod are conditions for until.
func isState(state string) func(status.Status) bool {
	return func(s status.Status) bool { return s.Service.Status.State == state }
}

func hasPod(state string) func(status.Status) bool {
	return func(s status.Status) bool { return len(s.Pods) == 1 && s.Pods[0].State == state }
}
