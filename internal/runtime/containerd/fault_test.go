// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// eventually waits until holds returns nil; after 30 s the test fails with its error.
func eventually(t testing.TB, holds func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = holds(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// answers waits until a containerd answers whose process is not pid.
func answers(t testing.TB, r *Runtime, pid int) {
	t.Helper()
	eventually(t, func() error {
		if now := r.own.PID(); now == 0 || now == pid {
			return errors.New("containerd is not started again")
		}
		_, err := r.client.Version(t.Context())
		return err
	})
}

func unready(t testing.TB) Config {
	cfg := testConfig(t)
	cfg.ReadyContainers, cfg.ReadyNetworks = -1, -1
	return cfg
}

func TestStartFailsCleanlyWhenContainerdIsKilled(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	failed := 0
	// The delays hit different points of the work of shim and runc.
	for _, ms := range []int{0, 8, 16, 28, 40, 60} {
		delay := time.Duration(ms) * time.Millisecond
		pid := r.own.PID()
		var killed chan struct{}
		p, err := r.Start(t.Context(), runtimetest.Service("killed"), runtime.StartHooks{Network: func(runtime.Pod) {
			killed = make(chan struct{})
			go func() {
				defer close(killed)
				time.Sleep(delay)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}()
		}})
		<-killed
		if err != nil {
			failed++
			if !errors.Is(err, runtime.ErrUnavailable) {
				t.Errorf("killed after %v: error %v is not ErrUnavailable", delay, err)
			}
			if !strings.Contains(err.Error(), "default/killed") {
				t.Errorf("error %v does not name the service", err)
			}
		}
		answers(t, r, pid)
		if err == nil {
			runtimetest.Look(t, p)
			if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
				t.Errorf("killed after %v: %v", delay, err)
			}
		}
		eventually(t, func() error {
			if after := podInventory(t, r); !slices.Equal(before, after) {
				return fmt.Errorf("killed after %v: left behind: %q", delay, after)
			}
			return nil
		})
		p, err = r.Start(t.Context(), runtimetest.Service("killed"), runtime.StartHooks{})
		if err != nil {
			t.Fatalf("next start: %v", err)
		}
		runtimetest.Look(t, p)
		if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if failed == 0 {
		t.Error("no start failed: the kill always came too late")
	}
}

// killBeforeAnswer kills containerd after it has started the process of a pod and before its answer arrives, and calls
// dead in between.
func killBeforeAnswer(t *testing.T, r *Runtime, dead func()) {
	t.Helper()
	interceptor := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, conn, o...)
		if err != nil || method != "/containerd.services.tasks.v1.Tasks/Start" {
			return err
		}
		if err := syscall.Kill(r.own.PID(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		dead()
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	c, err := connect(r.address, r.cfg.Namespace, grpc.WithUnaryInterceptor(interceptor))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Close(); err != nil {
		t.Fatal(err)
	}
	r.client, r.images.client, r.images.puller.client = c, c, c
}

// cgroupPids returns the processes in a cgroup, whose path is relative to the root of the hierarchies.
func cgroupPids(t *testing.T, path string) (pids []string) {
	t.Helper()
	dirs, err := cgroupDirs(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil {
			pids = append(pids, strings.Fields(string(text))...)
		}
	}
	return pids
}

// The pod is kept if containerd exits after it has started the process and before it has answered.
func TestStartSucceedsWhenContainerdIsKilledBeforeItAnswers(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	pid := r.own.PID()
	killBeforeAnswer(t, r, func() {})
	p, err := r.Start(t.Context(), runtimetest.Service("unanswered"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if r.own.PID() == pid {
		t.Error("containerd was not killed")
	}
	if p.Started == 0 || p.Started > monotime.Now() {
		t.Errorf("started at %v", p.Started)
	}
	runtimetest.Look(t, p)
	if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, p.ID); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("left behind: %q", after)
	}
}

// As before, but the start is cancelled while containerd is away. The process must be killed before Start returns, as
// its end cannot reach its clients afterwards.
func TestCancelledStartKillsItsProcessWhileContainerdIsAway(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pid := r.own.PID()
	killBeforeAnswer(t, r, cancel)
	var id string
	_, err := r.Start(ctx, runtimetest.Service("given-up"), runtime.StartHooks{Network: func(p runtime.Pod) { id = p.ID }})
	if err == nil {
		t.Fatal("started")
	}
	if pids := cgroupPids(t, filepath.Join(r.cfg.cgroup(), id)); len(pids) > 0 {
		t.Errorf("Start has failed, but processes of the pod still run: %v", pids)
	}
	answers(t, r, pid)
	eventually(t, func() error {
		if after := podInventory(t, r); !slices.Equal(before, after) {
			return fmt.Errorf("left behind: %q", after)
		}
		return nil
	})
}

// Pods keep running while containerd is killed and restarted, and can be stopped meanwhile and afterwards.
func TestPodsOutliveAKilledContainerd(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	var pods []runtime.Pod
	for i := range 2 {
		p, err := r.Start(t.Context(), runtimetest.Service("runs-"+strconv.Itoa(i)), runtime.StartHooks{})
		if err != nil {
			t.Fatal(err)
		}
		runtimetest.Look(t, p)
		pods = append(pods, p)
	}
	pid := r.own.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Stop waits until containerd is back.
	if err := r.Stop(t.Context(), pods[0].ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	runtimetest.NextExit(t, r, pods[0].ID)
	answers(t, r, pid)
	runtimetest.Look(t, pods[1])
	if err := r.Stop(t.Context(), pods[1].ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, pods[1].ID); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
}

func TestPodExitsWhenItsShimIsKilled(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	p, err := r.Start(t.Context(), runtimetest.Service("shimless"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	if _, err := os.Stat(r.shimSocket(p.ID)); err != nil {
		t.Errorf("the socket of the shim is elsewhere: %v", err)
	}
	if err := syscall.Kill(shimPid(t, r, p.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, p.ID); e.Code == 0 {
		t.Errorf("exit %+v of a pod whose shim was killed", e)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("left behind: %q", after)
	}
	socket := r.shimSocket(p.ID)
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("shim's socket %s: %v, want it gone", socket, err)
	}
}

func TestDestroyKillsProcessesThatOnlyACgroupHolds(t *testing.T) {
	cfg := testConfig(t)
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "1h")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	defer stray.Process.Kill()
	dirs, err := cgroupDirs(filepath.Join(r.cfg.cgroup(), "stray"))
	if err != nil {
		t.Fatal(err)
	}
	joined := 0
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "../..", "cgroup.procs")); err != nil {
			continue // not a hierarchy
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(stray.Process.Pid)), 0); err == nil {
			joined++ // fails where a cpuset has no CPU yet
		}
	}
	if joined == 0 {
		t.Fatal("the process is in no cgroup of the instance")
	}
	if err := errors.Join(r.Destroy(t.Context()), RemoveOwn(cfg.StateDir)); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the process still runs")
	}
	if left := inventory(t, cfg); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestFailedNewLeavesNoContainerd(t *testing.T) {
	cfg := testConfig(t)
	clean := func(when string) {
		t.Helper()
		if left := slices.DeleteFunc(inventory(t, cfg), func(what string) bool {
			return strings.HasPrefix(what,
				"folder")
		}); len(left) > 0 {
			t.Fatalf("%s: left behind: %q", when, left)
		}
	}
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(cfg.RunDir, "netns")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), blocked) {
		t.Errorf("with a file in place of a folder: %v", err)
	}
	clean("with a file in place of a folder")
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	for after := time.Duration(0); after <= 200*time.Millisecond; after += 5 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		r, err := New(ctx, cfg)
		cancel()
		if err == nil {
			err = r.Destroy(t.Context())
			if err != nil {
				t.Error(err)
			}
		}
		clean(fmt.Sprintf("cut off after %v", after))
	}
	if err := RemoveOwn(cfg.StateDir); err != nil {
		t.Error(err)
	}
}

// shimPid returns the parent of the pod's process.
func shimPid(t testing.TB, r *Runtime, id string) int {
	t.Helper()
	got, err := r.client.TaskService().Get(t.Context(), &tasks.GetRequest{ContainerID: id})
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", got.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "PPid:")
	pid, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

const childEnv = "WANGELL_TEST_CHILD"

// TestChildStartsAPodAndWaits is not a test but the process that TestNextProcessAdoptsThePodsOfAKilledOne starts and
// kills. It starts a pod and waits.
func TestChildStartsAPodAndWaits(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return
	}
	cfg := Config{Containerd: Owned, StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
		PodAddresses: testRange}
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	loadProbe(t, r)
	if _, err := r.Start(t.Context(), runtimetest.Service("survivor"), runtime.StartHooks{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, r)
	fmt.Println("started")
	select {}
}

// After a kill -9 of the process, containerd and the pod keep running. The next process adopts both and removes what
// was only kept ready.
func TestNextProcessAdoptsThePodsOfAKilledOne(t *testing.T) {
	cfg := testConfig(t)
	child := exec.Command("/proc/self/exe", "-test.run=^TestChildStartsAPodAndWaits$", "-test.v")
	child.Env = append(os.Environ(), childEnv+"="+filepath.Dir(cfg.RunDir))
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(text.String(), "started\n") {
		n, err := out.Read(buffer)
		text.Write(buffer[:n])
		if err != nil {
			t.Fatalf("child: %v: %s", err, text.String())
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	pidFile := filepath.Join(cfg.RunDir, "containerd", "pid")
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	named, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(named.emptyDirs(), "of-a-pod-before-the-reboot")
	if err := os.MkdirAll(filepath.Join(gone, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	began := monotime.Now()
	r := start(t, cfg)
	t.Logf("taken over in %v", monotime.Now().Sub(began))
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the emptyDir volumes of a pod that is gone: %v", err)
	}
	if again, err := os.ReadFile(pidFile); err != nil || string(again) != string(pid) {
		t.Errorf("another containerd was started: %v", err)
	}
	pods, err := r.List(t.Context())
	if err != nil || len(pods) != 1 || pods[0].Service != "default/survivor" {
		t.Fatalf("pods %+v, %v", pods, err)
	}
	runtimetest.Look(t, pods[0])
	awaitReady(t, r)
	ids, err := r.instanceContainers(t.Context())
	if err != nil || len(ids) != 1 {
		t.Errorf("containers %v, %v; want that of the pod", ids, err)
	}
	if err := r.Stop(t.Context(), pods[0].ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, pods[0].ID); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	cfg := testConfig(t)
	t.Setenv("PATH", t.TempDir())
	_, err := New(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "apt install containerd runc") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	cfg.Containerd = filepath.Join(t.TempDir(), "none.sock")
	if _, err = New(t.Context(), cfg); !errors.Is(err, runtime.ErrUnavailable) ||
		!strings.Contains(err.Error(), cfg.Containerd) {
		t.Errorf("error %v", err)
	}
}

func TestInvalidConfigIsRefused(t *testing.T) {
	good := testConfig(t)
	for name, change := range map[string]func(*Config){
		"relative":  func(c *Config) { c.RunDir = "run" },
		"long":      func(c *Config) { c.RunDir = "/" + strings.Repeat("x", maxRunDir) },
		"socket":    func(c *Config) { c.Containerd = "containerd.sock" },
		"instance":  func(c *Config) { c.Instance = "a/b" },
		"addresses": func(c *Config) { c.PodAddresses = netip.MustParsePrefix("10.46.128.0/31") },
		"IPv6":      func(c *Config) { c.PodAddresses = netip.MustParsePrefix("fd46::/64") },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if left := inventory(t, good); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Some calls of containerd's client return gRPC errors, others have converted them already.
func TestErrorsOfContainerdKeepTheirClass(t *testing.T) {
	notFound := status.Error(codes.NotFound, "container x: not found")
	for _, err := range []error{notFound, errgrpc.ToNative(notFound),
		fmt.Errorf("remove: %w", errgrpc.ToNative(notFound))} {
		if got := native(err); !errdefs.IsNotFound(got) {
			t.Errorf("native(%v) is %v, want not found", err, got)
		}
		if got := absent(err); got != nil {
			t.Errorf("absent(%v) is %v, want nil", err, got)
		}
	}
	away := status.Error(codes.Unavailable, "connection refused")
	for _, err := range []error{away, errgrpc.ToNative(away)} {
		if got := native(err); !errors.Is(got, runtime.ErrUnavailable) {
			t.Errorf("native(%v) is %v, want ErrUnavailable", err, got)
		}
	}
	if native(nil) != nil || absent(nil) != nil {
		t.Error("nil became an error")
	}
}

// A containerd that is killed between making the folder of a snapshot and recording it leaves a folder that is in the
// way of the next snapshot.
func TestFoldersThatAKilledContainerdLeavesAreNotInTheWay(t *testing.T) {
	cfg := unready(t)
	r := startWithProbe(t, cfg)
	folders := filepath.Join(snapshotterRoot(cfg.StateDir, DefaultSnapshotter), "snapshots")
	entries, err := os.ReadDir(folders)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	last := 0
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			last = max(last, n)
		}
	}
	// Numbers are not used again, so the next one may be some above that of the last folder.
	for n := range 8 {
		if err := os.MkdirAll(filepath.Join(folders, fmt.Sprint(last+1+n), "fs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.Start(t.Context(), runtimetest.Service("blocked"), runtime.StartHooks{})
	if err == nil || !strings.Contains(err.Error(), "file exists") {
		t.Fatalf("the folders are not in the way: %v", err)
	}
	pid := r.own.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	answers(t, r, pid)
	if _, err := r.Start(t.Context(), runtimetest.Service("blocked"), runtime.StartHooks{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(folders, fmt.Sprint(last+8))); !os.IsNotExist(err) {
		t.Errorf("a folder is left: %v", err)
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(folders, e.Name())); err != nil {
			t.Errorf("a recorded snapshot is gone: %v", err)
		}
	}
}
