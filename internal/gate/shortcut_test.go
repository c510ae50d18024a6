// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// A connection that was established in the stack stays there.
func TestShortcutBypassesTheStackAfterTheHandshake(t *testing.T) {
	all := newRemoteWorld(t, func(c *Config) { c.Shortcut = true })
	// begin sends pod 2's SYN and the SYN-ACK through the stack.
	begin := func(w *world) {
		w.Helper()
		w.warm(vip, 1)
		w.before = w.counters()
		w.untouched(onPod2, w.syn(1000).frame())
		w.toPod(1, w.syn(1000).frame(), w.wantRun(onLocal, w.syn(1000).frame(), tcxRedirect))
		reply := w.fromPod(1, "SA", 5000, 1001)
		reply.options = synOptions
		if out := w.wantRun(onPod1, reply.frame(), tcxRedirect); !bytes.Equal(out[:6], w.g.dev.innerMAC) {
			t.Errorf("the SYN-ACK goes to %x", out[:6])
		}
	}
	counted := func(w *world, want map[string]uint64) {
		w.Helper()
		if got := w.counted(); !maps.Equal(got, want) {
			w.Errorf("counted %v, want %v", got, want)
		}
	}
	t.Run("here", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		ack := w.fromClient("A", 1001, 5001).frame()
		w.toPod(1, ack, w.wantRun(onPod2, ack, tcxRedirect))
		w.wantCounts(1, 0, 1)
		w.toPod(1, dataFrame(w), w.wantRun(onPod2, dataFrame(w), tcxRedirect))
		out := w.wantRun(onPod1, podData(w).frame(), tcxRedirect)
		rewritten(w, podData(w).frame(), out, ack[:6], ack[6:12], vip, client)
		// Another pod that uses the address of this one has no part in its connection.
		w.untouched(onPod3, dataFrame(w))
		// A late retransmission of its SYN and a new SYN from the same port go through the stack.
		w.untouched(onPod2, w.syn(1000).frame())
		w.untouched(onPod2, w.syn(77).frame())
		counted(w, map[string]uint64{"shortcuts": 1})
	})
	t.Run("elsewhere", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.wantRun(onLocal, w.syn(1000).frame(), tcxRedirect)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "SA", 5000, 1001)).frame()), tcxRedirect)
		w.before = w.counters()
		ack := w.fromClient("A", 1001, 5001).frame()
		if got := w.unwrap(w.wantRun(onPod2, ack, tcxRedirect), toPodType, inside, 1, ack); !bytes.Equal(got, ack) {
			t.Errorf("changed: %x", got)
		}
		reply := w.asSent(w.fromPod(1, "PA", 5001, 1001, make([]byte, 100)...)).frame()
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, reply), tcxRedirect)
		if !bytes.Equal(out[12:], reply[12:]) || !bytes.Equal(out[:6], ack[6:12]) || !bytes.Equal(out[6:12], ack[:6]) {
			t.Errorf("became %x from %x", out, reply)
		}
		counted(w, map[string]uint64{"shortcuts": 1})
	})
	t.Run("forged ack", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		// A segment that the client cannot have sent goes through the stack and does not start the shortcut.
		w.untouched(onPod2, w.fromClient("A", 1001, 9999).frame())
		reply := w.fromPod(1, "SA", 5000, 1001)
		if out := w.wantRun(onPod1, reply.frame(), tcxRedirect); !bytes.Equal(out[:6], w.g.dev.innerMAC) {
			t.Errorf("the SYN-ACK goes to %x", out[:6])
		}
		counted(w, map[string]uint64{})
	})
	t.Run("established in the stack", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		ack := w.fromClient("A", 1001, 5001).frame()
		w.toPod(1, ack, w.wantRun(onLocal, ack, tcxRedirect)) // before the gate was attached to the device
		w.untouched(onPod2, dataFrame(w))
		counted(w, map[string]uint64{})
	})
	t.Run("other packets", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.before = w.counters()
		w.untouched(onPod2, strayData(w).frame())
		w.untouched(onPod2, ping(w))
		w.untouched(onPod2, udp(w))
		w.untouched(onPod2, toForeign(w).frame())
		counted(w, map[string]uint64{})
		// A flow of another host is not the pod's.
		w.connect(1000, 5000)
		w.untouched(onPod2, dataFrame(w))
	})
	t.Run("removed pod", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		w.wantRun(onPod2, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
		w.must(w.g.RemovePod(vip, 1))
		w.untouched(onPod2, dataFrame(w))
	})
}

// The gate is attached to pods' devices as they appear, and to no others. No link to a removed device remains, even if
// no daemon saw the removal.
func TestShortcutFollowsPodDevices(t *testing.T) {
	newNamespace(t, "far")
	device := func(name string) string {
		sh(t, "ip link add %[1]s type veth peer name %[1]s netns far; ip link set %[1]s up", name)
		return podLink(linkByName(t, name).Attrs().Index)
	}
	early := device("early")
	nic := veth(t, "nic")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"},
		Shortcut: true}
	w := &world{TB: t, podLink: make([]netlink.Link, 4), nic: nic}
	open := func() {
		t.Helper()
		var err error
		w.g, err = Open(cfg)
		w.must(err)
	}
	open()
	t.Cleanup(func() {
		w.must(w.g.Close())
		w.must(Remove(cfg.Dir))
	})
	links := func(want ...string) {
		t.Helper()
		eventually(t, func() error {
			there, err := filepath.Glob(filepath.Join(cfg.linksDir(), "pod-*"))
			if err != nil {
				return err
			}
			got := map[string]bool{}
			for _, p := range there {
				got[filepath.Base(p)] = true
			}
			for _, name := range want {
				if !got[name] {
					return fmt.Errorf("links %v, want %v", got, want)
				}
			}
			if len(got) != len(want) {
				return fmt.Errorf("links %v, want %v", got, want)
			}
			return nil
		})
	}
	links(early)
	late := device("late")
	links(early, late)
	// A device that leaves a bridge remains a device.
	sh(t, "ip link add br0 type bridge; ip link set late master br0; ip link set late nomaster; ip link del br0")
	veth(t, "neighbor") // both ends are in this namespace
	// A service's pod on a device to which the gate is attached.
	w.podLink[3] = linkByName(t, "late")
	w.service(vip, 1, 1)
	w.addPod(vip, 3)
	links(early, late)
	w.must(w.g.RemovePod(vip, 3))
	links(early, late)
	w.addPod(vip, 3)
	sh(t, "ip link del late")
	last := device("last") // its event follows that of late
	links(early, late, last)
	w.must(w.g.RemovePod(vip, 3))
	links(early, last)
	// One device disappears and one appears while no daemon runs.
	w.must(w.g.Close())
	sh(t, "ip link del early")
	during := device("during")
	open()
	links(last, during)
	// Without the shortcut, only services' pods are attached.
	w.must(w.g.Close())
	cfg.Shortcut = false
	open()
	links()
}

// On a cluster, with the shortcut or without, the node's stack decides which pod may connect.
func TestStackDecidesWhichPodsConnect(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		t.Run(fmt.Sprint("shortcut ", shortcut), func(t *testing.T) {
			n := newNetwork(t, XDPOff, 1500)
			n.must(n.g.Close())
			n.must(removeLinks(&n.cfg))
			n.cfg.Shortcut, n.cfg.EncapPort, n.cfg.NodeAddr = shortcut, encapPort, netip.MustParseAddr(nodeAddr)
			n.open()
			sh(t, `sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.pod2.rp_filter=0
				ip route replace %v dev pod2`, podAt[2].Addr())
			t.Cleanup(func() { sh(t, "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=1") })
			n.service()
			n.addPod(vip, 1)
			_, err := n.g.Serve(vip, 1)
			n.must(err)
			echo(n, podNS(1), podAt[1])
			if err := tryAs("pod2", "", vip); err != nil {
				t.Fatalf("an allowed pod: %v", err)
			}
			sh(t, "ip rule add from %v prohibit", podAt[2].Addr())
			t.Cleanup(func() { sh(t, "ip rule del from %v prohibit", podAt[2].Addr()) })
			if err := tryAs("pod2", "", vip); err == nil {
				t.Error("a forbidden pod connected")
			}
		})
	}
}
