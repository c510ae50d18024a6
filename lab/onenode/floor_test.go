// SPDX-License-Identifier: Apache-2.0

package onenode

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// fake is a runtime whose only pod is a server on 127.0.0.1.
type fake struct {
	runtime.Runtime
	port    uint16
	err     error
	running int
	begun   int
}

func (f *fake) Prepare(context.Context, *v1alpha1.WangellService, runtime.Progress) error { return nil }
func (f *fake) Exits() <-chan runtime.Exit {
	none := make(chan runtime.Exit)
	close(none)
	return none
}

func (f *fake) Start(_ context.Context, _ *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	if f.err != nil {
		return runtime.Pod{}, f.err
	}
	pod := runtime.Pod{ID: "a", Addr: netip.MustParseAddr("127.0.0.1")}
	hooks.Network(pod)
	hooks.Phase(runtime.PhaseSandbox, monotime.Now())
	hooks.Phase(runtime.PhaseCreated, monotime.Now())
	hooks.Phase(runtime.PhaseStarted, monotime.Now())
	f.running++
	f.begun++
	return pod, nil
}

func (f *fake) Stop(context.Context, string, time.Duration) error {
	f.running--
	return nil
}

func TestFloorMeasuresEachRequestedStart(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	rt := &fake{port: netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://")).Port()}
	service := &v1alpha1.WangellService{Spec: v1alpha1.WangellServiceSpec{TargetPort: int32(rt.port)}}
	asks, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Floor(context.Background(), rt, service, asks, answers)
		answers.Close()
	}()
	client := floorClient{in: in, out: bufio.NewScanner(out)}
	s, err := client.Sample()
	if err != nil || s.Attempts < 1 || s.FirstByte < s.Connected || s.Connected < s.Phases["created"] ||
		len(s.Phases) != 3 {
		t.Errorf("sample %+v, %v", s, err)
	}
	status = http.StatusInternalServerError
	if s, err := client.Sample(); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a server that fails: %+v, %v", s, err)
	}
	rt.err = errors.New("no such image")
	if s, err := client.Sample(); err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("a start that fails: %+v, %v", s, err)
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if rt.running != 0 || rt.begun != 2 {
		t.Errorf("%d pods were started and %d not stopped", rt.begun, rt.running)
	}
	if _, err := client.Sample(); err == nil {
		t.Error("a sample of a process that has ended")
	}
}
