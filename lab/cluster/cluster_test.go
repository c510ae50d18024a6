// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/decide/lifecycle"
)

func TestPodEventsYieldPhasesAndAddress(t *testing.T) {
	sandbox := func(ip string) *criv1.PodSandboxStatus {
		return &criv1.PodSandboxStatus{Id: "s", CreatedAt: 2, Network: &criv1.PodSandboxNetworkStatus{Ip: ip}}
	}
	events := make(chan *criv1.ContainerEventResponse, 8)
	send := func(id string, kind criv1.ContainerEventType, at int64, status *criv1.PodSandboxStatus) {
		events <- &criv1.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: at,
			PodSandboxStatus: status}
	}
	send("s", criv1.ContainerEventType_CONTAINER_CREATED_EVENT, 1, sandbox(""))
	send("s", criv1.ContainerEventType_CONTAINER_STARTED_EVENT, 9, sandbox("10.0.0.7"))
	send("c", criv1.ContainerEventType_CONTAINER_CREATED_EVENT, 11, sandbox("10.0.0.7"))
	var e PodEvents
	if err := e.Until(t.Context(), lifecycle.PhaseCreated, events); err != nil {
		t.Fatal(err)
	}
	if e.Addr != netip.MustParseAddr("10.0.0.7") || e.Phases[lifecycle.PhaseSandbox].UnixNano() != 2 ||
		e.Phases[lifecycle.PhaseCreated].UnixNano() != 11 {
		t.Errorf("got %+v", e)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Until(ctx, lifecycle.PhaseStarted, events); err == nil {
		t.Error("a container that has not started was reported as started")
	}
}

func TestUseOfPodsIsReadFromEitherCgroupVersion(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(v1, "node-1/kubepods/burstable/podA/cpuacct.usage"), "1500000000\n")
	write(filepath.Join(v2, "node-1/kubepods/podB/cpu.stat"), "usage_usec 250000\nuser_usec 1\n")
	write(filepath.Join(v2, "node-1/kubepods/burstable/podA/cpu.stat"), "nr_periods 0\n") // version 1 has the controller
	for uid, want := range map[string]time.Duration{"A": 1500 * time.Millisecond, "B": 250 * time.Millisecond} {
		if got, err := podCPU([]string{v1, v2}, "/node-1", uid); err != nil || got != want {
			t.Errorf("pod %s: %v, %v; want %v", uid, got, err, want)
		}
	}
	if got, err := podCPU([]string{v1, v2}, "/node-1", "C"); err == nil {
		t.Errorf("a pod that does not exist: %v", got)
	}
	write(filepath.Join(v1, "node-1/kubepods/burstable/podA/memory.stat"), "rss 1\ntotal_cache 7\ntotal_rss 4096\n")
	write(filepath.Join(v2, "node-1/kubepods/podB/memory.stat"), "anon 8192\nfile 7\n")
	for uid, want := range map[string]int64{"A": 4096, "B": 8192} {
		if got, err := podMemory([]string{v1, v2}, "/node-1", uid); err != nil || got != want {
			t.Errorf("pod %s: %v, %v; want %v", uid, got, err, want)
		}
	}
	if got, err := podMemory([]string{v1, v2}, "/node-1", "C"); err == nil {
		t.Errorf("a pod that does not exist: %v", got)
	}
}

func TestAddressesCountBackFromBroadcast(t *testing.T) {
	p := netip.MustParsePrefix("10.204.0.0/22")
	for n, want := range map[int]string{0: "10.204.3.255", 1: "10.204.3.254", 300: "10.204.2.211"} {
		if got := addressFromEnd(p, n).String(); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
