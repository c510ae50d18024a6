// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/test/testutil/need"
)

// echoAt is the variable that has this program echo at its address instead of running tests.
const echoAt = "WANGELL_TEST_ECHO_AT"

// runEcho answers each connection with what it sends.
func runEcho(at string) int {
	l, err := net.Listen("tcp4", at)
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// stillServer is a process in a pod's network namespace and a cgroup of its own.
type stillServer struct {
	testing.TB
	freezer *freezer.Freezer
	cgroup  string
}

// echoInPod starts an echo server in the network namespace of pod 1, and returns once it listens.
func echoInPod(n *network) *stillServer {
	n.Helper()
	name := fmt.Sprintf("wangell-gate-test-%d", os.Getpid())
	s := &stillServer{n, freezer.New(""), name}
	dir := filepath.Join(cgroup.DefaultRoot, "freezer", name)
	if _, err := os.Stat(filepath.Dir(dir)); errors.Is(err, os.ErrNotExist) { // cgroups of version 2 only
		dir = filepath.Join(cgroup.DefaultRoot, name)
	}
	n.must(os.Mkdir(dir, 0o755))
	n.Cleanup(func() { n.must(os.Remove(dir)) })
	if s.freezer.Gone(name) {
		need.Unmet(n, "needs a freezer of cgroups")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), echoAt+"="+podAt[1].String())
	cmd.Stderr = os.Stderr
	n.must(inNamespace(podNS(1), cmd.Start))
	n.Cleanup(func() {
		n.must(s.freezer.Thaw(name))
		n.must(cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	})
	n.must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0))
	return s
}

// stop freezes the server, as a daemon does, and returns once it stands still.
func (s *stillServer) stop(g *Gate) {
	s.Helper()
	if err := g.setFrozen(vip, 1, true); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if err := s.freezer.Freeze(ctx, s.cgroup); err != nil {
		s.Fatal(err)
	}
}

// resume thaws it.
func (s *stillServer) resume(g *Gate) {
	s.Helper()
	if err := s.freezer.Thaw(s.cgroup); err != nil {
		s.Fatal(err)
	}
	if err := g.SetFrozen(vip, 1, false); err != nil {
		s.Fatal(err)
	}
}

// answered writes to a connection, and reads as much back once the pod is thawed.
func (s *stillServer) answered(n *network, c net.Conn, thaws int) {
	s.Helper()
	sent, got := make([]byte, 100), make([]byte, 100)
	_, _ = rand.Read(sent)
	n.must(c.SetDeadline(time.Now().Add(2 * time.Minute)))
	_, err := c.Write(sent)
	n.must(err)
	n.ev.await(n, EventThaw, thaws)
	s.resume(n.g)
	_, err = io.ReadFull(c, got)
	n.must(err)
	if !bytes.Equal(got, sent) {
		s.Fatalf("thaw %d: sent %x, got %x", thaws, sent, got)
	}
}

// A connection lasts through a thousand sleeps of its server. New ones are accepted in its sleep, and keepalives do not
// disturb it.
func TestConnectionsSurviveThatTheirServerIsFrozen(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofNever})
	n.must(err)
	n.addPod(vip, 1)
	s := echoInPod(n)
	eventually(t, func() error {
		c, err := dialWithin(podNS(1), podAt[1], time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	_, err = n.g.Serve(vip, 1)
	n.must(err)
	c, err := dial("client", vip)
	n.must(err)
	defer c.Close()
	const rounds = 1000
	for thaws := 1; thaws <= rounds; thaws++ {
		s.stop(n.g)
		s.answered(n, c, thaws)
	}

	s.stop(n.g)
	second, err := dial("client", vip)
	n.must(err)
	defer second.Close()
	s.answered(n, second, rounds+1)

	n.must(c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 100}))
	s.stop(n.g)
	before, err := n.g.PodCounters(vip, 1)
	n.must(err)
	eventually(t, func() error {
		now, err := n.g.PodCounters(vip, 1)
		if probes := now.PacketsIn - before.PacketsIn; err == nil && probes < 2 {
			err = fmt.Errorf("%d keepalives", probes)
		}
		return err
	})
	if f, _ := n.g.PodFreeze(vip, 1); f != PodFrozen {
		t.Errorf("keepalives had the pod thawed: %d", f)
	}
	s.answered(n, c, rounds+2)
	if got := n.ev.await(t, EventThaw, rounds+2); len(got) != rounds+2 {
		t.Errorf("%d thaws in %d sleeps", len(got), rounds+2)
	}
}
