// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/readiness"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestExecHasTheRightsOfThePodAndLeavesNothing(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s, uid := runtimetest.Service("exec", "COLOR", "blue"), int64(1234)
	s.Spec.SecurityContext = &corev1.SecurityContext{RunAsUser: &uid}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	own := runtimetest.Look(t, p)
	dir := PipesDir(r.cfg.RunDir)
	e, err := NewExecutor(r.Address(), r.cfg.Namespace, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	exec := func(within time.Duration, command ...string) (int, string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		code, output, err := e.Exec(ctx, p.ID, "", command)
		return code, string(output), err
	}
	program := own.Args[0]
	code, output, err := exec(time.Minute, program, "run", "look")
	for _, want := range []string{`"UID":1234,"GID":2345,"Groups":[2345,3456]`, `"COLOR=blue"`, `"Dir":"/work"`,
		`"CapEff":"` + own.CapEff} {
		if code != 0 || err != nil || !strings.Contains(output, want) {
			t.Errorf("code %d, %v: no %s in %s", code, err, want, output)
		}
	}
	for i := range 20 { // the end of a command may come before its output
		if code, output, err := exec(time.Minute, program, "run", "look"); code != 0 || err != nil || output == "" {
			t.Fatalf("run %d: code %d, %v, %d bytes", i, code, err, len(output))
		}
	}
	if code, output, err := exec(time.Minute, program, "run", "shout"); code != 7 || err != nil ||
		output != strings.Repeat("loud ", readiness.MaxOutput)[:readiness.MaxOutput] {
		t.Errorf("code %d, %v, %d bytes", code, err, len(output))
	}
	if _, _, err := exec(2*time.Second, program, "run", "hang"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that hangs: %v", err)
	}
	for within := time.Millisecond; within < time.Second; within += within / 4 { // whichever step it interrupts
		if _, _, err := exec(within, program, "run", "hang"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a command that hangs, %v: %v", within, err)
		}
	}
	if _, _, err := exec(time.Minute, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a command that does not exist: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("pipes are left: %v, %v", left, err)
	}
	c, err := r.Client().LoadContainer(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.Task(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := task.Pids(t.Context())
	if err != nil || len(pids) != 1 {
		t.Errorf("processes %v, %v: want the pod's own", pids, err)
	}
	if after := runtimetest.Look(t, p); !slices.Equal(after.Links, own.Links) || after.PID != own.PID {
		t.Errorf("the pod is another one: %+v, %+v", after, own)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := exec(time.Minute, program, "run", "look"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("in a pod that is gone: %v", err)
	}
}

// caller is what a process that has attached to a command has of it, until it is killed.
type caller struct {
	client.Process
	pipes  *cio.DirectIO
	folder *pipesFolder
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
		if c.folder, err = openPipes(PipesDir(r.cfg.RunDir)); err != nil {
			return nil, err
		}
		fifos, err := cio.NewFIFOSetInDir(c.folder.path, id, tty)
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
	c.folder.lock.Close()
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

func TestCommandThatCannotBeRunIsToldFromOtherFaults(t *testing.T) {
	const begin = "OCI runtime exec failed: exec failed: unable to start container process: "
	for text, want := range map[string]CommandError{
		begin + `exec: "none": executable file not found in $PATH: unknown`: {
			NotFound: true, Reason: "executable file not found in $PATH"},
		begin + `exec: "/a: \"b\"": stat /a: "b": no such file or directory: unknown`: {
			NotFound: true, Reason: "no such file or directory"},
		begin + `exec /script: no such file or directory: unknown`: { // its interpreter
			NotFound: true, Reason: "no such file or directory"},
		begin + `exec /bin/other: exec format error`:         {Reason: "exec format error"},
		begin + `exec: "/etc": is a directory: unknown`:      {Reason: "is a directory"},
		begin + `exec: "/etc/x": permission denied: unknown`: {Reason: "permission denied"},
		begin + `chdir to cwd ("/none") set in config.json failed: no such file or directory: unknown`: {
			Reason: `chdir to cwd ("/none") set in config.json failed: no such file or directory`},
	} {
		var got *CommandError
		err := commandError(errors.New(text))
		if !errors.As(err, &got) || got.NotFound != want.NotFound || got.Reason != want.Reason || err.Error() != text {
			t.Errorf("%s: %+v", text, got)
		}
	}
	for _, text := range []string{
		begin + "error executing setns process: exit status 1: unknown", "task 1 not found", "context deadline exceeded",
	} {
		if err := errors.New(text); commandError(err) != err { //nolint:errorlint // the same one
			t.Errorf("%s: %+v", text, commandError(err))
		}
	}
}

// A shim that starts a command without a reader of its output does nothing else in its container for 30 seconds.
func TestPodsOfKilledCallersAreStoppedAtOnce(t *testing.T) {
	r := startWithProbe(t, unready(t))
	p, err := r.Start(t.Context(), runtimetest.Service("orphan"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	program := runtimetest.Look(t, p).Args[0]
	alone := len(cgroupPids(t, p.Cgroup))
	alive := call(t, r, p.ID, execID("probe-"), false, program, "run", "hang") // its caller is not touched
	c := call(t, r, p.ID, execID("probe-"), false, program, "run", "hang")
	c.die()
	started := make(chan error, 1)
	go func() { started <- c.Start(t.Context()) }()
	for len(cgroupPids(t, p.Cgroup)) == alone { // until runc has started it
		time.Sleep(time.Millisecond)
	}
	if err := r.EndOrphans(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil { // the shim waits no longer
		t.Errorf("the start: %v", err)
	}
	for len(cgroupPids(t, p.Cgroup)) > alone { // until the orphan has ended
		time.Sleep(time.Millisecond)
	}
	folders := func() int {
		left, err := os.ReadDir(PipesDir(r.cfg.RunDir))
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	for folders() > 1 { // until the orphan's is gone
		time.Sleep(time.Millisecond)
	}
	if _, err := os.Stat(alive.folder.path); err != nil {
		t.Errorf("the folder of a caller that lives: %v", err)
	}
	alive.die()
	if err := r.EndOrphans(); err != nil {
		t.Fatal(err)
	}
	for folders() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
}
