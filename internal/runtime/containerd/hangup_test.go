// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// caller is what a process that has attached to a command has of it, until it is killed.
type caller struct {
	client.Process
	pipes *cio.DirectIO
}

// call prepares a command in a pod.
func call(t *testing.T, r *Runtime, pod, id string, tty bool, args ...string) (c caller) {
	t.Helper()
	task, process, err := processOf(t.Context(), r.Client(), pod)
	if err != nil {
		t.Fatal(err)
	}
	process.Args, process.Terminal = args, tty
	c.Process, err = task.Exec(t.Context(), id, process, func(id string) (cio.IO, error) {
		fifos, err := cio.NewFIFOSetInDir(PipesDir(r.cfg.RunDir), id, tty)
		if err != nil {
			return nil, err
		}
		c.pipes, err = cio.NewDirectIO(context.WithoutCancel(t.Context()), fifos)
		return c.pipes, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// begin starts the command, and returns once it has printed a line.
func (c caller) begin(t *testing.T) {
	t.Helper()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c.pipes.Stdout).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
}

// die closes what the kernel closes for a process that is killed.
func (c caller) die() {
	for _, pipe := range []interface{ Close() error }{c.pipes.Stdin, c.pipes.Stdout, c.pipes.Stderr} {
		if pipe != nil {
			_ = pipe.Close()
		}
	}
}

func TestCommandOfACallerThatIsGoneEndsWithItsChildren(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s := runtimetest.Service("hangup")
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	program, k := runtimetest.Look(t, p).Args[0], v1alpha1.KeyOf(s)
	// nothing checks that nothing is left of a command, and returns how long the end of it took.
	nothing := func(what, id string) (took time.Duration) {
		t.Helper()
		begin := time.Now()
		if err := r.EndCommand(k, id); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		took = time.Since(begin)
		list, err := r.Client().TaskService().ListPids(t.Context(), &tasks.ListPidsRequest{ContainerID: p.ID})
		if err != nil || len(list.Processes) != 1 {
			t.Errorf("%s: processes %v, %v: want the pod's own", what, list, err)
		}
		if left, err := os.ReadDir(PipesDir(r.cfg.RunDir)); err != nil || len(left) > 0 {
			t.Errorf("%s: pipes are left: %v, %v", what, left, err)
		}
		return took
	}
	for _, tty := range []bool{false, true} {
		id := NewCommandID()
		c := call(t, r, p.ID, id, tty, program, "run", "parent")
		c.begin(t)
		c.die()
		nothing("a command with a child", id)
		if code, text := runtimetest.Ask(t, p, "/read", url.Values{"f": {"/dev/shm/hangup"}}); code != http.StatusOK ||
			text != "SIGHUP" {
			t.Errorf("the command has got no SIGHUP: %s", text)
		}
		if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {"/dev/shm/hangup"}}); code != http.StatusOK {
			t.Fatal(text)
		}
	}
	id := NewCommandID()
	c := call(t, r, p.ID, id, false, program, "run", "stubborn")
	c.begin(t)
	c.die()
	if took := nothing("a command that ignores SIGHUP", id); took < hangupPatience {
		t.Errorf("a command that ignores SIGHUP had %v, want %v", took, hangupPatience)
	}

	id = NewCommandID()
	call(t, r, p.ID, id, false, program, "run", "hang").die()
	nothing("a command that was not started", id)

	// While it is being started, without a reader of its output.
	alone := len(cgroupPids(t, p.Cgroup))
	for range 3 {
		id = NewCommandID()
		c = call(t, r, p.ID, id, false, program, "run", "hang")
		c.die()
		started := make(chan error, 1)
		go func() { started <- c.Start(t.Context()) }()
		for len(cgroupPids(t, p.Cgroup)) == alone { // until runc has started it
			time.Sleep(time.Millisecond)
		}
		nothing("a command that is being started", id)
		if err := <-started; err != nil {
			t.Errorf("the start: %v", err)
		}
	}
	nothing("a command of nobody", NewCommandID())
	for _, bad := range []string{"", "exec-", "probe-0123456789abcdef", p.ID} {
		if err := r.EndCommand(k, bad); err == nil {
			t.Errorf("%q is an ID of a command", bad)
		}
	}
	if after := runtimetest.Look(t, p); after.PID != 1 {
		t.Errorf("the pod is another one: %+v", after)
	}
}
