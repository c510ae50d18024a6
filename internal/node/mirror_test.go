// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
)

// A daemon with peers has containerd pull through its mirror, tells the controller what it has, and leaves nothing in
// containerd's settings when it is uninstalled.
func TestADaemonSharesTheImagesItPulls(t *testing.T) {
	sh(t, "ip link set lo up")
	containerd, hub := containerdtest.Start(t, 0), faultyhub.New(t)
	ref, layers := hub.Push(t, "team/shared:v1", faultyhub.Noise(t, 6<<20)) // two pieces
	addr := netip.MustParseAddr("10.46.200.1")                              // of eth0
	clean := false
	w := newWorld(t, func(c *Config) {
		c.CRI, c.NodeAddr, c.EncapPort = "unix://"+containerd.Socket, addr, 7947
		c.Peers = PeersConfig{Port: 7948, LocalPort: 7949, Dir: t.TempDir(), Hosts: containerd.Hosts}
		c.Clean = func() bool { return clean }
	})
	hosts := filepath.Join(containerd.Hosts, "_default", "hosts.toml")
	if _, err := os.Stat(hosts); err != nil {
		t.Fatal(err)
	}
	if m := await[*wire.Mirror](w); m.Addr != netip.AddrPortFrom(addr, 7948) {
		t.Errorf("its mirror is %+v", m)
	}
	for _, m := range wire.NewImages(1, []wire.WantedImage{{Ref: ref, Policy: wire.ImageIfNotPresent}}) {
		w.send(m)
	}
	// Answer as the controller does, until the layer is there.
	for complete := false; !complete; {
		report := await[*wire.Blobs](w)
		for _, b := range report.Blobs {
			switch b.State {
			case wire.BlobComplete:
				complete = complete || b.Size > 4<<20
			case wire.BlobPartial:
				w.send(&wire.Holders{
					Repository: report.Repository, Digest: b.Digest, Size: b.Size, PauseMillis: 50,
					Lease: swarm.FullSet(swarm.Pieces(b.Size)), Expires: uint64(time.Now().Add(time.Hour).Unix()),
				})
			}
		}
	}
	for there := false; !there; {
		there = await[*wire.ImageReports](w).Images[0].State == wire.ImagePresent
	}
	if bytes, requests := hub.Sent(layers[0]); requests != 2 || bytes > 7<<20 {
		t.Errorf("the layer of two pieces left the registry in %d requests, %d bytes", requests, bytes)
	}
	clean = true
	w.stop()
	w.done <- nil // for the stop at the end of the test
	if _, err := os.Stat(hosts); !os.IsNotExist(err) {
		t.Errorf("containerd's settings are left: %v", err)
	}
}
