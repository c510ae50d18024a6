// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/test/testutil/need"
)

// TestEventsOfARealRuntime runs a pod in a real container runtime: WANGELL_TEST_CRI is its socket,
// WANGELL_TEST_CRI_IMAGE an image that it has, whose process runs until it is killed.
func TestEventsOfARealRuntime(t *testing.T) {
	endpoint := need.Chosen(t, "WANGELL_TEST_CRI",
		"the socket of a container runtime, and WANGELL_TEST_CRI_IMAGE to an image it has")
	image := os.Getenv("WANGELL_TEST_CRI_IMAGE")
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := criv1.NewRuntimeServiceClient(conn)
	type received struct {
		runtime.PodReport
		came time.Time
	}
	reports := make(chan received, 100)
	onReport := func(s runtime.PodReport) { reports <- received{s, time.Now()} }
	w, err := New(Config{Endpoint: endpoint, OnPodReport: onReport})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	time.Sleep(3 * pollQuiet) // a quiet watch
	expect := func(want runtime.PodEvent, since time.Time) runtime.PodReport {
		t.Helper()
		select {
		case s := <-reports:
			if s.Event != want || s.Pod.Service != "default/hello" || s.Pod.ID != "uid-real" || !s.Pod.Addr.Is4() {
				t.Fatalf("got %+v, want event %d", s, want)
			}
			if _, err := os.Stat(s.Pod.Netns); want != runtime.PodNetworkGone && err != nil {
				t.Error(err)
			}
			t.Logf("event %d came %v after the call began, container %q, code %d, netns %s", want, s.came.Sub(since),
				s.Container, s.Code, s.Pod.Netns)
			return s.PodReport
		case <-time.After(patience):
			t.Fatalf("event %d does not come", want)
		}
		return runtime.PodReport{}
	}
	pod := &criv1.PodSandboxConfig{
		Metadata:     &criv1.PodSandboxMetadata{Name: "hello-real", Namespace: "default", Uid: "uid-real"},
		Labels:       map[string]string{v1alpha1.LabelService: "hello"},
		LogDirectory: t.TempDir(),
		Linux:        &criv1.LinuxPodSandboxConfig{},
	}
	begin := time.Now()
	run, err := c.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("RunPodSandbox took %v", time.Since(begin))
	id := run.PodSandboxId
	defer c.RemovePodSandbox(context.Background(), &criv1.RemovePodSandboxRequest{PodSandboxId: id})
	expect(runtime.PodNetworkReady, begin)
	for attempt := range 2 {
		begin = time.Now()
		created, err := c.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: id, SandboxConfig: pod,
			Config: &criv1.ContainerConfig{
				Metadata: &criv1.ContainerMetadata{Name: "main", Attempt: uint32(attempt)}, Image: &criv1.ImageSpec{Image: image},
				LogPath: fmt.Sprintf("%d.log", attempt), Linux: &criv1.LinuxContainerConfig{},
			}})
		if err != nil {
			t.Fatal(err)
		}
		expect(runtime.PodContainerCreated, begin)
		begin = time.Now()
		if _, err := c.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
			t.Fatal(err)
		}
		t.Logf("StartContainer took %v", time.Since(begin))
		expect(runtime.PodContainerStarted, begin)
		begin = time.Now()
		if _, err := c.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: created.ContainerId}); err != nil {
			t.Fatal(err)
		}
		if s := expect(runtime.PodContainerExited, begin); s.Container != "main" {
			t.Errorf("container %q", s.Container)
		}
	}
	begin = time.Now()
	if _, err := c.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	expect(runtime.PodNetworkGone, begin)
}
