// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
