// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"context"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

// Frames that a native XDP program on the node's device sends back must reach the link, as on a real wire.
func TestXDPTransmitReachesTheLink(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	reflect, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "wgl_reflect", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 3 /* XDP_TX */), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer reflect.Close()
	err = n.Node.Do(func() error {
		dev, err := netlink.LinkByName(netlab.Device)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: reflect, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	capture, err := n.Link.Capture("node")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan struct{})
	go func() { // its ARP requests are reflected
		defer close(done)
		if c, err := n.Client().Dialer().DialContext(ctx, "tcp4", n.Node.Addr.String()+":80"); err == nil {
			c.Close()
		}
	}()
	_, err = capture.Wait(ctx, func(p netlab.Packet) bool {
		return !p.Outgoing && len(p.Data) > 14 && p.Data[12] == 8 && p.Data[13] == 6
	})
	if err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if _, err := capture.Close(); err != nil {
		t.Error(err)
	}
}
