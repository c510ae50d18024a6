// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"strings"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/node/readiness"
)

func TestExecRunsInTheRunningContainerOfThePod(t *testing.T) {
	f := critest.New(t)
	f.OnExec = func(r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
		if r.ContainerId != "p-main-2" || strings.Join(r.Cmd, " ") != "pg_isready -q" || r.Timeout < 1 || r.Timeout > 60 {
			t.Errorf("%+v", r)
		}
		return &criv1.ExecSyncResponse{ExitCode: 2, Stdout: []byte("out "), Stderr: []byte(strings.Repeat("e", 1<<20))}, nil
	}
	f.Start()
	l := &reports{}
	w, err := New(Config{Endpoint: f.Path, OnPodReport: l.add})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for _, pod := range []string{"p", "q"} {
		f.Pod(pod, "hello", t.TempDir(), "10.244.0.9")
		for _, c := range []string{"main", "side", "main-2"} {
			f.Container(pod, pod+"-"+c, strings.TrimSuffix(c, "-2"))
			f.Become(pod+"-"+c, critest.Running, 0)
			if c == "main" { // it is restarted
				f.Become(pod+"-"+c, critest.Exited, 1)
			}
		}
	}
	for end := time.Now().Add(patience); l.count() < 16; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d pod events, want 16", l.count())
		}
	}
	const uid = "uid-p"
	code, output, err := w.Exec(ctx, uid, "main", []string{"pg_isready", "-q"})
	if code != 2 || err != nil || len(output) != readiness.MaxOutput || !strings.HasPrefix(string(output), "out eee") {
		t.Errorf("code %d, %q, %v", code, output, err)
	}
	for _, c := range []struct{ uid, container, want string }{
		{"nobody", "main", "no pod with the UID nobody"}, {uid, "third", `container "third" does not run`},
	} {
		if _, _, err := w.Exec(ctx, c.uid, c.container, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v, want %s", c.container, c.uid, err, c.want)
		}
	}
}
