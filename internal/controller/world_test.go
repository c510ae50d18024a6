// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// world is a controller with a daemon and a runtime.
type world struct {
	t    testing.TB
	c    *Controller
	rt   *fakeRuntime
	d    *fakeDaemon
	cfg  Config
	addr string

	addresses map[v1alpha1.Key]netip.Addr // given to services without an address of their own
	applied   []v1alpha1.Key
}

func newWorld(t testing.TB, change func(*Config)) *world {
	w := &world{t: t, rt: newFakeRuntime()}
	if change == nil {
		change = func(*Config) {}
	}
	w.boot(change)
	w.d = w.daemon()
	t.Cleanup(func() {
		w.d.client.Close()
		w.c.Detach()
	})
	return w
}

// boot makes a controller.
func (w *world) boot(change func(*Config)) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.cfg = Config{Runtime: w.rt, Conn: conn, Node: "n1"}
	rand.Read(w.cfg.Key[:])
	change(&w.cfg)
	w.addr = conn.LocalAddr().String()
	if w.c, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) daemon() *fakeDaemon { return w.daemonOn("n1") }

// daemonOn returns the daemon of a node, which sends the first messages when it connects.
func (w *world) daemonOn(node string, first ...wire.Message) *fakeDaemon {
	c := w.c
	d := &fakeDaemon{
		node: node, settle: func() { c.loop.call(func() {}) }, table: map[netip.AddrPort]wire.Service{},
		connected: make(chan struct{}), backends: map[netip.AddrPort]*wire.Backends{},
		refused: map[netip.AddrPort][]string{}, last: map[netip.AddrPort]monotime.Time{}, loads: map[uint64]uint32{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: w.addr, Key: w.cfg.Key.ForNode(node), Node: node,
		Services: d.services, Receive: d.receive, First: first,
		Connected: func() { d.connects.Do(func() { close(d.connected) }) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// newService returns a service with defaults.
func newService(name string, change ...func(*v1alpha1.WangellServiceSpec)) *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1alpha1.WangellServiceSpec{Image: "registry.example/" + name + ":1", Port: 80, TargetPort: 8080},
	}
	for _, f := range change {
		f(&s.Spec)
	}
	v1alpha1.Default(s)
	return s
}

// apply makes the services the given ones. A service keeps its address, also under the next controller.
func (w *world) apply(services ...*v1alpha1.WangellService) {
	w.t.Helper()
	if err := w.tryApply(services...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryApply(services ...*v1alpha1.WangellService) error {
	if w.addresses == nil {
		w.addresses = map[v1alpha1.Key]netip.Addr{}
	}
	var put []Service
	var keys []v1alpha1.Key
	wanted := map[v1alpha1.Key]bool{}
	for _, s := range services {
		addr, known := w.addresses[v1alpha1.KeyOf(s)]
		switch {
		case s.Spec.Address != "":
			addr = netip.MustParseAddr(s.Spec.Address)
		case !known:
			n := len(w.addresses) + 2
			addr = netip.AddrFrom4([4]byte{10, 46, byte(100 + n>>8), byte(n)})
			w.addresses[v1alpha1.KeyOf(s)] = addr
		}
		put = append(put, Service{Spec: s, Addr: addr, Announce: true})
		keys = append(keys, v1alpha1.KeyOf(s))
		wanted[v1alpha1.KeyOf(s)] = true
	}
	remove := slices.DeleteFunc(slices.Clone(w.applied), func(k v1alpha1.Key) bool { return wanted[k] })
	if err := w.c.Update(put, remove); err != nil {
		return err
	}
	w.applied = keys
	return w.c.Synced(context.Background())
}

// vip returns the address of a service, once the daemon has it.
func (w *world) vip(name string) netip.AddrPort {
	w.t.Helper()
	for _, s := range w.c.Status() {
		if s.Service.Name == name {
			a := netip.AddrPortFrom(netip.MustParseAddr(s.Service.Status.LoadBalancerIP), uint16(s.Service.Spec.Port))
			w.until("the daemon has "+name, func() bool { return w.d.has(a) })
			return a
		}
	}
	w.t.Fatalf("no service %s", name)
	return netip.AddrPort{}
}

func (w *world) status(name string) status.Status {
	for _, s := range w.c.Status() {
		if s.Service.Name == name {
			return s
		}
	}
	return status.Status{}
}

func (w *world) state(name string) string { return w.status(name).Service.Status.State }

// until waits for a condition.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			running, started, stopped := w.rt.state()
			w.t.Fatalf("never: %s\nruntime: running %v, started %v, stopped %v\nstatus: "+
				"%+v", what, running, started, stopped, w.c.Status())
		}
	}
}

// untilDaemons waits until n daemons are connected.
func (w *world) untilDaemons(n int) {
	w.t.Helper()
	w.until(fmt.Sprint(n, " daemons are connected"), func() (ok bool) {
		w.c.loop.call(func() { ok = len(w.c.engine.daemons.peers) == n })
		return ok
	})
}

func (w *world) untilState(name, state string) {
	w.t.Helper()
	w.until(name+" is "+state, func() bool { return w.state(name) == state })
}

// warm wakes a service and returns its address.
func (w *world) warm(name string) netip.AddrPort {
	w.t.Helper()
	a := w.vip(name)
	w.d.syn(a)
	w.untilState(name, "Warm")
	w.until("the daemon serves "+name, func() bool { return w.d.pods(a) == " serving" })
	return a
}

var errScript = errors.New(`image "x": not found`)
