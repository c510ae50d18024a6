// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/need"
)

// asServer is the environment variable that makes this test binary the program of a pod.
const asServer = "WANGELL_TEST_SERVER"

// serveAsPod answers requests at the port of the service and at one that only listens on the loopback device.
func serveAsPod() error {
	answer := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "pod") })
	failed := make(chan error, 2)
	for _, at := range []string{":8080", "127.0.0.1:8081"} {
		l, err := net.Listen("tcp4", at)
		if err != nil {
			return err
		}
		go func() { failed <- http.Serve(l, answer) }()
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the test does, even if it is killed
		os.Exit(0)
	}()
	return <-failed
}

// runInPod starts a program in the cgroup of a container and in the network namespace of pod 1.
func runInPod(t *testing.T, dirs []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/pod1"}, args...)...)
	cmd.Env = append(os.Environ(), asServer+"=1")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Error(err)
		}
	}
	return cmd
}

// container makes the cgroup of a container in that of its pod, in every hierarchy that freezes.
func container(t *testing.T, pod, name string) (dirs []string) {
	t.Helper()
	for _, place := range []string{"", "freezer"} {
		dir := filepath.Join("/sys/fs/cgroup", place, pod)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue // no hierarchy
		}
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

// worldWithFrozenPod makes pod 1 of a cluster, which serves, and freezes it. It returns the path of its cgroup.
func worldWithFrozenPod(t *testing.T) (w *world, cgroup string) {
	t.Helper()
	runtime := critest.New(t)
	runtime.Start()
	w = newWorld(t, func(c *Config) { c.CRI, c.CgroupRoot = runtime.Path, "/sys/fs/cgroup" })
	s := hello(0)
	s.IdleSeconds, s.FreezeSeconds = 100, 2
	if err := w.server.SetServices([]wire.Service{s}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { _, err := get(clientNet); answered <- err }()
	await[*wire.Wake](w)

	b := w.pod(1)
	cgroup = emptyCgroup(t)
	id := strconv.Itoa(os.Getpid())
	pause := runInPod(t, container(t, cgroup, id), "sleep", "infinity")
	server := runInPod(t, container(t, cgroup, "server"), must(os.Executable()))
	f := freezer.New("")
	t.Cleanup(func() {
		w.stop() // which thaws the pod
		for _, cmd := range []*exec.Cmd{pause, server} {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		w.start()
	})
	runtime.Pod(id, "hello", b.Netns, b.Addr.Addr().String())
	runtime.Place(id, cgroup, pause.Process.Pid)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{b}})
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	last := await[*wire.Idle](w).LastPacket
	w.send(&wire.Freeze{Service: vip, Seq: 1, Pods: []wire.FrozenPod{{PodID: 1, LastPacket: last}}})
	if m := await[*wire.Frozen](w); !m.Frozen {
		t.Fatalf("it is not frozen: %s", m.Reason)
	}
	if frozen, err := f.Frozen(cgroup); !frozen || err != nil {
		t.Fatalf("frozen: %t, %v", frozen, err)
	}
	return w, cgroup
}

// On a cluster, a frozen pod gives its requests back, which lowers the weight of its CPU.
func TestThawedPodHasItsWeightAgain(t *testing.T) {
	w, cgroup := worldWithFrozenPod(t)
	f := freezer.New("")
	former, err := f.Weight(cgroup)
	if err != nil {
		need.Unmet(t, "needs the cpu controller of cgroups: %v", err)
	}
	file, least := filepath.Join("/sys/fs/cgroup", cgroup, "cpu.weight"), uint64(1)
	if _, err := os.Stat(file); err != nil {
		file, least = filepath.Join("/sys/fs/cgroup/cpu", cgroup, "cpu.shares"), 2
	}
	if err := os.WriteFile(file, []byte(strconv.FormatUint(least, 10)), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := get(clientNet); err != nil {
		t.Fatal(err)
	}
	if m := await[*wire.Frozen](w); m.Frozen { // the weight comes first
		t.Errorf("it is not thawed: %+v", m)
	}
	if now, err := f.Weight(cgroup); err != nil || now != former {
		t.Errorf("weight %d, %v; want %d", now, err, former)
	}
}

// Connections that are made inside of the network namespace, as kubectl port-forward makes them, do not pass the gate.
func TestFrozenPodAnswersConnectionsFromInsideItsNetwork(t *testing.T) {
	w, cgroup := worldWithFrozenPod(t)
	f := freezer.New("")
	for _, at := range []string{"127.0.0.1:8080", "127.0.0.1:8081"} {
		var c net.Conn
		in(t, "pod1", func() (err error) { c, err = net.DialTimeout("tcp4", at, time.Minute); return err })
		defer c.Close()
		answers := bufio.NewReader(c)
		for i := range 3 {
			if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("request %d on one connection to %s: %v", i+1, at, err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				frozen, err := f.Frozen(cgroup)
				if err != nil {
					t.Fatal(err)
				}
				if frozen {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("it is not frozen again after request %d to %s", i+1, at)
				}
			}
		}
	}
	for len(w.messages) > 0 {
		if m, ok := (<-w.messages).(*wire.Frozen); ok && !m.Frozen {
			t.Errorf("a connection from inside counts as use: %+v", m)
		}
	}
}

// What a client in a network namespace sends to a program there is noticed once, until it is drained.
func TestLoopbackTellsWhatAsksAProgram(t *testing.T) {
	for _, c := range []struct{ name, network, at string }{{"IPv4", "tcp4", "127.0.0.1:0"}, {"IPv6", "tcp6", "[::1]:0"}} {
		t.Run(c.name, func(t *testing.T) { testLoopback(t, c.network, c.at) })
	}
}

func testLoopback(t *testing.T, network, at string) {
	const name = "looped"
	namespace(t, name, "wglooped", "true")
	asked := make(chan struct{}, 10)
	l, err := watchLoopback("/run/netns/"+name, func() { asked <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	expect := func(step string) {
		t.Helper()
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatalf("%s is not noticed", step)
		}
		if l.drain(); len(asked) > 0 { // the reader waits for the drain
			t.Errorf("%s is noticed twice", step)
		}
	}
	var listener net.Listener
	var client, server net.Conn
	in(t, name, func() (err error) { listener, err = net.Listen(network, at); return err })
	defer listener.Close()
	in(t, name, func() (err error) { client, err = net.Dial(network, listener.Addr().String()); return err })
	defer client.Close()
	expect("a connection")
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	send := func(what string) {
		t.Helper()
		if _, err := client.Write([]byte(what)); err != nil {
			t.Fatal(err)
		}
	}
	send("word")
	expect("data")

	// A keepalive, and its answer, have passed when what comes after them is noticed: only that may be.
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var before, after *unix.TCPInfo
	info := func() (i *unix.TCPInfo) {
		_ = raw.Control(func(fd uintptr) { i, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before = info()
	if err := client.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: time.Second, Interval: time.Second, Count: 100,
	}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if after = info(); after.Segs_out > before.Segs_out && after.Segs_in > before.Segs_in {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no keepalive")
		}
	}
	if len(asked) > 0 {
		t.Error("a keepalive is noticed")
	}
	client.Close()
	expect("the end")
}
