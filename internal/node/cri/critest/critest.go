// SPDX-License-Identifier: Apache-2.0

// Package critest is a fake container runtime for tests. It serves the CRI over a real socket; the test controls its
// pods.
package critest

import (
	"context"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// Runtime is a fake container runtime. It starts no process: its methods set the states of pods and containers.
type Runtime struct {
	criv1.UnimplementedRuntimeServiceServer
	// Path is its socket.
	Path string
	// NoEvents makes it a runtime without events. Set it before Start.
	NoEvents bool
	// OnExec runs commands. Set it before Start. Optional.
	OnExec func(*criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error)
	// Images are its images.
	Images *Images
	// NotContainerd makes it a runtime with nothing but the CRI. Set it before Start.
	NotContainerd bool
	t             *testing.T

	mu         sync.Mutex
	server     *grpc.Server
	sandboxes  map[string]*criv1.PodSandboxStatus
	netns      map[string]string
	containers map[string]*criv1.ContainerStatus
	homes      map[string]string // container → sandbox
	streams    map[chan *criv1.ContainerEventResponse]bool
	lists      int
	stats      map[string]*criv1.ContainerStats
	lazy       map[string]string // the image of each pod that starts before its image is here, by sandbox
	places     map[string]place
}

// place is where the pause container of a pod runs.
type place struct {
	cgroup string // of the pod
	pid    int
}

// States of a container for Become.
const (
	Running = criv1.ContainerState_CONTAINER_RUNNING
	Exited  = criv1.ContainerState_CONTAINER_EXITED
)

// New returns a runtime, which does not answer before Start.
func New(t *testing.T) *Runtime {
	f := &Runtime{
		t: t, Images: newImages(), Path: filepath.Join(t.TempDir(), "cri.sock"),
		sandboxes: map[string]*criv1.PodSandboxStatus{}, netns: map[string]string{},
		containers: map[string]*criv1.ContainerStatus{}, homes: map[string]string{},
		stats: map[string]*criv1.ContainerStats{}, lazy: map[string]string{}, places: map[string]place{},
		streams: map[chan *criv1.ContainerEventResponse]bool{},
	}
	t.Cleanup(f.Stop)
	return f
}

// Start starts to serve.
func (f *Runtime) Start() {
	l, err := net.Listen("unix", f.Path)
	if err != nil {
		f.t.Fatal(err)
	}
	srv := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(srv, f)
	f.Images.register(srv, !f.NotContainerd)
	f.mu.Lock()
	f.server = srv
	f.mu.Unlock()
	go func() { _ = srv.Serve(l) }() // returns when the server is stopped
}

// Stop closes the socket and all connections. Its pods stay.
func (f *Runtime) Stop() {
	f.mu.Lock()
	srv := f.server
	f.server = nil
	f.mu.Unlock()
	if srv != nil {
		srv.Stop()
	}
}

// ListPodSandbox implements the CRI.
func (f *Runtime) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	r := &criv1.ListPodSandboxResponse{}
	for _, s := range f.sandboxes {
		item := &criv1.PodSandbox{Id: s.Id, Metadata: s.Metadata, State: s.State, Labels: s.Labels}
		if f.lazy[s.Id] != "" {
			item.RuntimeHandler = v1alpha1.LazyRuntime
		}
		r.Items = append(r.Items, item)
	}
	return r, nil
}

// PodSandboxStatus implements the CRI.
func (f *Runtime) PodSandboxStatus(_ context.Context,
	r *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	at := f.places[s.Id]
	return &criv1.PodSandboxStatusResponse{Status: s, Info: map[string]string{
		"info": fmt.Sprintf(`{"pid":%d,"runtimeSpec":{"linux":{"cgroupsPath":%q,`+
			`"namespaces":[{"type":"pid"},{"type":"network","path":%q}]}}}`,
			at.pid, path.Join(at.cgroup, s.Id), f.netns[s.Id]),
	}}, nil
}

// ListContainers implements the CRI.
func (f *Runtime) ListContainers(_ context.Context,
	q *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &criv1.ListContainersResponse{}
	for _, c := range f.containers {
		if in := q.GetFilter().GetPodSandboxId(); in != "" && f.homes[c.Id] != in ||
			q.GetFilter().GetState() != nil && c.State != q.Filter.State.State {
			continue
		}
		r.Containers = append(r.Containers, &criv1.Container{Id: c.Id, PodSandboxId: f.homes[c.Id], Metadata: c.Metadata,
			State: c.State, CreatedAt: c.CreatedAt, ImageRef: f.lazy[f.homes[c.Id]]})
	}
	return r, nil
}

// Status implements the CRI: it has the handler of pods that start before their image is here.
func (*Runtime) Status(context.Context, *criv1.StatusRequest) (*criv1.StatusResponse, error) {
	return &criv1.StatusResponse{RuntimeHandlers: []*criv1.RuntimeHandler{{Name: v1alpha1.LazyRuntime}}}, nil
}

// Lazy makes a pod start before its image is complete. The image exists.
func (f *Runtime) Lazy(sandbox, image string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lazy[sandbox] = fullName(image)
}

// ContainerStatus implements the CRI.
func (f *Runtime) ContainerStatus(_ context.Context, r *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse,
	error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &criv1.ContainerStatusResponse{Status: c}, nil
}

// ExecSync implements the CRI: it calls OnExec with the container's ID.
func (f *Runtime) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	if f.OnExec == nil {
		return nil, status.Error(codes.Unimplemented, "no OnExec")
	}
	return f.OnExec(r)
}

// ListContainerStats implements the CRI.
func (f *Runtime) ListContainerStats(_ context.Context,
	r *criv1.ListContainerStatsRequest) (*criv1.ListContainerStatsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &criv1.ListContainerStatsResponse{}
	for id, home := range f.homes {
		if home != r.GetFilter().GetPodSandboxId() || f.containers[id].State != Running {
			continue
		}
		s := f.stats[id]
		if s == nil {
			s = &criv1.ContainerStats{Attributes: &criv1.ContainerAttributes{Id: id}}
		}
		out.Stats = append(out.Stats, s)
	}
	return out, nil
}

// Use sets what a container uses: CPU time of all cores since its start, and bytes of memory.
func (f *Runtime) Use(container string, cpu time.Duration, memory uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixNano()
	f.stats[container] = &criv1.ContainerStats{
		Attributes: &criv1.ContainerAttributes{Id: container},
		Cpu:        &criv1.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: &criv1.UInt64Value{Value: uint64(cpu)}},
		Memory:     &criv1.MemoryUsage{Timestamp: now, WorkingSetBytes: &criv1.UInt64Value{Value: memory}},
	}
}

// GetContainerEvents implements the CRI.
func (f *Runtime) GetContainerEvents(_ *criv1.GetEventsRequest,
	s grpc.ServerStreamingServer[criv1.ContainerEventResponse]) error {
	if f.NoEvents {
		return status.Error(codes.Unimplemented, "no events here")
	}
	events := make(chan *criv1.ContainerEventResponse, 100)
	f.mu.Lock()
	f.streams[events] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.streams, events)
	}()
	for {
		select {
		case e := <-events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// publish sends an event to all streams. f.mu is held.
func (f *Runtime) publish(kind criv1.ContainerEventType, container, sandbox string) {
	e := &criv1.ContainerEventResponse{ContainerId: container, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
		PodSandboxStatus: f.sandboxes[sandbox]}
	for id, c := range f.containers {
		if f.homes[id] == sandbox {
			e.ContainersStatuses = append(e.ContainersStatuses, c)
		}
	}
	for s := range f.streams {
		s <- e
	}
}

// Pod creates a pod of the service default/NAME, with spec hash "abc" and UID "uid-ID"; of no service if name is empty.
// netns is the path of its network namespace, ip its IPv4 address.
func (f *Runtime) Pod(id, name, netns, ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	labels := map[string]string{"app": "x"}
	if name != "" {
		labels[v1alpha1.LabelService], labels[v1alpha1.LabelSpecHash] = name, "abc"
	}
	f.netns[id] = netns
	f.sandboxes[id] = &criv1.PodSandboxStatus{
		Id: id, Metadata: &criv1.PodSandboxMetadata{Name: "pod-" + id, Namespace: "default", Uid: "uid-" + id},
		State: criv1.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(), Labels: labels,
		Network: &criv1.PodSandboxNetworkStatus{Ip: "fd00::1", AdditionalIps: []*criv1.PodIP{{Ip: ip}}},
	}
	f.publish(criv1.ContainerEventType_CONTAINER_CREATED_EVENT, id, id)
	f.publish(criv1.ContainerEventType_CONTAINER_STARTED_EVENT, id, id)
}

// Place sets the cgroup of a pod, and the process of its pause container in it.
func (f *Runtime) Place(id, cgroup string, pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.places[id] = place{cgroup, pid}
}

// Container creates a container in a pod.
func (f *Runtime) Container(sandbox, id, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.homes[id] = sandbox
	f.containers[id] = &criv1.ContainerStatus{Id: id, Metadata: &criv1.ContainerMetadata{Name: name},
		State: criv1.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano()}
	f.publish(criv1.ContainerEventType_CONTAINER_CREATED_EVENT, id, sandbox)
}

// Log sets the path of a container's log.
func (f *Runtime) Log(id, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := proto.Clone(f.containers[id]).(*criv1.ContainerStatus) // statuses that were sent must not change
	c.LogPath = path
	f.containers[id] = c
}

// Become sets the state of a container; code is the exit status.
func (f *Runtime) Become(id string, state criv1.ContainerState, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.containers[id]
	// Statuses that were sent must not change.
	c := &criv1.ContainerStatus{Id: id, Metadata: old.Metadata, State: state, CreatedAt: old.CreatedAt,
		StartedAt: old.StartedAt, ExitCode: code, LogPath: old.LogPath}
	kind := criv1.ContainerEventType_CONTAINER_STARTED_EVENT
	if state == criv1.ContainerState_CONTAINER_RUNNING {
		c.StartedAt = time.Now().UnixNano()
	} else {
		kind, c.FinishedAt = criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, time.Now().UnixNano()
	}
	f.containers[id] = c
	f.publish(kind, id, f.homes[id])
}

// Remove removes a pod.
func (f *Runtime) Remove(sandbox string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[sandbox]
	f.sandboxes[sandbox] = &criv1.PodSandboxStatus{Id: s.Id, Metadata: s.Metadata,
		State: criv1.PodSandboxState_SANDBOX_NOTREADY, Labels: s.Labels, Network: &criv1.PodSandboxNetworkStatus{}}
	f.publish(criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, sandbox, sandbox)
	delete(f.sandboxes, sandbox)
	for c, home := range f.homes {
		if home == sandbox {
			delete(f.containers, c)
			delete(f.homes, c)
		}
	}
	f.publish(criv1.ContainerEventType_CONTAINER_DELETED_EVENT, sandbox, sandbox)
}

// Watched reports whether a client reads events.
func (f *Runtime) Watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streams) > 0
}

// Listed returns how often pods were listed.
func (f *Runtime) Listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}
