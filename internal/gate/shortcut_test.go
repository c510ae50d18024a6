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

// What a pod sends to a service goes through the stack until its connection is known from there, and was answered; then
// round it, both ways. A connection that was established before stays in the stack.
func TestShortcut(t *testing.T) {
	all := newRemoteWorld(t, func(c *Config) { c.Shortcut = true })
	// begin has the SYN of pod 2 come through the stack, and be answered there.
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
		// Its SYN again, late, and a new one from the same port are the stack's.
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
	t.Run("not its own", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		// What the client cannot have sent is the stack's, and turns nothing round.
		w.untouched(onPod2, w.fromClient("A", 1001, 9999).frame())
		reply := w.fromPod(1, "SA", 5000, 1001)
		if out := w.wantRun(onPod1, reply.frame(), tcxRedirect); !bytes.Equal(out[:6], w.g.dev.innerMAC) {
			t.Errorf("the SYN-ACK goes to %x", out[:6])
		}
		counted(w, map[string]uint64{})
	})
	t.Run("older", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		ack := w.fromClient("A", 1001, 5001).frame()
		w.toPod(1, ack, w.wantRun(onLocal, ack, tcxRedirect)) // before its device was attached to
		w.untouched(onPod2, dataFrame(w))
		counted(w, map[string]uint64{})
	})
	t.Run("nobody's", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.before = w.counters()
		w.untouched(onPod2, strayData(w).frame())
		w.untouched(onPod2, ping(w))
		w.untouched(onPod2, udp(w))
		w.untouched(onPod2, toForeign(w).frame())
		counted(w, map[string]uint64{})
		// One of another host is none of a pod's.
		w.connect(1000, 5000)
		w.untouched(onPod2, dataFrame(w))
	})
	t.Run("its pod is gone", func(t *testing.T) {
		w := all.in(t)
		begin(w)
		w.wantRun(onPod2, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
		w.must(w.g.RemovePod(vip, 1))
		w.untouched(onPod2, dataFrame(w))
	})
}

// The gate is attached to the devices of pods as they come, those of services too, and to no other; nothing remains of
// those that went, whether a daemon saw it or not.
func TestShortcutDevices(t *testing.T) {
	newNamespace(t, "far")
	device := func(name string) string {
		sh(t, "ip link add %[1]s type veth peer name %[1]s netns far; ip link set %[1]s up", name)
		return podLink(linkByName(t, name).Attrs().Index)
	}
	early := device("early")
	nic := veth(t, "nic")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"}, Shortcut: true}
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
	// A bridge's port goes from it, and stays a device.
	sh(t, "ip link add br0 type bridge; ip link set late master br0; ip link set late nomaster; ip link del br0")
	veth(t, "neighbour") // both ends are here
	// A pod of a service, on a device that is attached to already.
	w.podLink[3] = linkByName(t, "late")
	w.service(vip, 1, 1)
	w.addPod(vip, 3)
	links(early, late)
	w.must(w.g.RemovePod(vip, 3))
	links(early, late)
	w.addPod(vip, 3)
	sh(t, "ip link del late")
	last := device("last") // its event comes after that of late
	links(early, late, last)
	w.must(w.g.RemovePod(vip, 3))
	links(early, last)
	// While no daemon runs, one goes and one comes.
	w.must(w.g.Close())
	sh(t, "ip link del early")
	during := device("during")
	open()
	links(last, during)
	// Without the shortcut, services' pods alone.
	w.must(w.g.Close())
	cfg.Shortcut = false
	open()
	links()
}
