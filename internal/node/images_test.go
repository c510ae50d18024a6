// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/images/prefetch"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
)

// The daemon keeps its images until the next set is there as a whole.
func TestASetOfImagesIsUsedOnceItIsComplete(t *testing.T) {
	i := &images{keeper: prefetch.New(prefetch.Config{})}
	set := func(prefix string, n int) (out []wire.WantedImage) {
		for k := range n {
			out = append(out, wire.WantedImage{Ref: fmt.Sprintf("%s%d", prefix, k), Policy: wire.ImageIfNotPresent})
		}
		return out
	}
	check := func(what, prefix string, n int) {
		t.Helper()
		got := i.keeper.Reports()
		if len(got) != n || slices.ContainsFunc(got, func(r wire.ImageReport) bool { return r.Ref[:1] != prefix }) {
			t.Errorf("%s: %d images, want %d of %s", what, len(got), n, prefix)
		}
	}
	a, b := wire.NewImages(1, set("a", 100)), wire.NewImages(2, set("b", 150))
	i.receive(a[0])
	check("half a set", "a", 0)
	i.receive(a[1])
	check("a set", "a", 100)
	i.receive(b[0])
	i.receive(b[2])
	check("a set with a gap", "a", 100)
	for _, m := range b {
		i.receive(m)
	}
	check("the next set", "b", 150)
	i.receive(a[0])
	i.receive(a[1])
	check("an older set", "b", 150)
	sent := 0
	i.beginSession(func(m wire.Message) { sent += len(m.(*wire.ImageReports).Images) })
	if sent != 150 {
		t.Errorf("%d images reported to a new session", sent)
	}
	i.receive(wire.NewImages(1, nil)[0])
	check("an empty set of another controller", "b", 0)
}

// A set is used once all its pieces have come in order, and an older one never.
func TestASetIsUsedWhenItIsWhole(t *testing.T) {
	var p pieces[string]
	for _, c := range []struct {
		generation uint64
		piece, of  uint16
		item       string
		want       []string // nil: not whole
	}{
		{1, 0, 2, "a", nil}, {1, 1, 2, "b", []string{"a", "b"}}, {1, 1, 2, "b", nil},
		{2, 1, 2, "c", nil}, {2, 0, 3, "c", nil}, {2, 2, 3, "d", nil}, {2, 1, 3, "d", nil},
		{3, 0, 1, "e", []string{"e"}}, {2, 0, 1, "old", nil}, {4, 0, 2, "f", nil}, {5, 0, 1, "g", []string{"g"}},
	} {
		set, whole := p.add(c.generation, c.piece, c.of, []string{c.item})
		if whole != (c.want != nil) || !slices.Equal(set, c.want) {
			t.Errorf("piece %d of %d of generation %d: %v, %v; want %v", c.piece, c.of, c.generation, set, whole, c.want)
		}
	}
}

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

// The pods that use an unreadable layer are reported, and the node as one that lacks the image; not those that were
// started later, have another layer, or all of their image.
func TestPodsWhoseFilesCannotBeHadAreReported(t *testing.T) {
	const ref = "registry.example/model:v1"
	layer := digest.FromString("a layer").String()
	rt := critest.New(t)
	rt.Images.Add(ref)
	rt.Images.SetLayers(layer)
	rt.Start()
	for _, id := range []string{"reads", "full", "other", "later"} {
		rt.Pod(id, id, "/netns", "10.0.0.1")
	}
	rt.Lazy("reads", ref)
	rt.Lazy("other", "registry.example/other:v1") // which is not there
	rt.Lazy("later", ref)
	for _, id := range []string{"reads", "full", "other"} {
		rt.Container(id, "c-"+id, "app")
	}
	f := failures.Failure{Image: ref, Layer: layer, Registry: "registry.example", Files: []string{"/model"}, Cause: "gone"}
	time.Sleep(time.Millisecond) // the clock of the runtime's times is another one
	f.At = monotime.Now()
	time.Sleep(time.Millisecond)
	rt.Container("later", "c-later", "app")

	sent := make(chan wire.Message, 100)
	d := &daemon{log: slog.New(slog.DiscardHandler), ctx: t.Context()}
	d.cfg.LazySocket = t.TempDir() + "/lazy.sock"
	var err error
	if d.images, err = d.newImages(rt.Path, func(m wire.Message) { sent <- m }); err != nil {
		t.Fatal(err)
	}
	defer d.images.store.Close()
	expect := func(what string, is func(wire.Message) bool) {
		t.Helper()
		for {
			select {
			case m := <-sent:
				if u, ok := m.(*wire.Unreadable); ok && u.UID != "uid-reads" {
					t.Errorf("reported as well: %+v", u)
				}
				if is(m) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("not reported: %s", what)
			}
		}
	}
	state := func(s wire.ImageState) func(wire.Message) bool {
		return func(m wire.Message) bool {
			r, ok := m.(*wire.ImageReports)
			return ok && r.Images[0].State == s && (s != wire.ImageFailed || r.Images[0].Reason == cri.ReasonUnreadable)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.images.keeper.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	d.images.keeper.Want([]wire.WantedImage{{Ref: ref, Policy: wire.ImageIfNotPresent, Lazy: true}})
	expect("the image is there", state(wire.ImagePresent))

	var log failures.Log
	log.Add(f) // before the daemon listens
	listener, err := net.Listen("unix", failures.Socket(d.cfg.LazySocket))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = log.Serve(ctx, listener) }()
	watched := make(chan struct{})
	go func() { defer close(watched); d.watchUnreadable(ctx) }()
	defer func() { cancel(); <-watched }()
	expect("the image cannot be fetched", state(wire.ImageFailed))
	expect("the pod", func(m wire.Message) bool {
		u, ok := m.(*wire.Unreadable)
		return ok && u.UID == "uid-reads" && strings.HasPrefix(u.Cause, "/model of image "+ref)
	})
}
