// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// passed is how many requests of containerd a node's mirror has left to the registry.
func (n *node) passed() float64 { return testutil.ToFloat64(n.mirror.metrics.passed) }

// A registry that wants to be left alone is: the mirror waits as long as it says, longer than it waits for one that
// fails, and asks again with few requests.
func TestARegistryThatAsksForAPauseGetsIt(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/limited:v1", faultyhub.Noise(t, layerSize))
	const pause = 4 * time.Second
	hub.Set(faultyhub.Fault{RetryAfter: int(pause.Seconds())})
	n := newFabric(t).add("a")
	done := make(chan struct{})
	begin := time.Now()
	go func() { defer close(done); pullAll(t, ref, n) }()
	containerdtest.Until(t, "the registry has asked for two pauses", func() bool {
		return hub.Limited() > 0 && time.Since(begin) > 2*pause-time.Second
	})
	limited, pauses := hub.Limited(), int(time.Since(begin)/pause)+1
	hub.Set(faultyhub.Fault{})
	<-done
	t.Logf("%d requests were refused in %d pauses", limited, pauses)
	// Before each of them, as many as are in progress at once.
	if most := pauses * n.mirror.cfg.Limits.Registry; limited > most || n.passed() > 0 {
		t.Errorf("%d requests during the pauses, want at most %d; %v left to containerd", limited, most, n.passed())
	}
	if sent := sentOf(hub, layers); sent > layerSize*11/10 {
		t.Errorf("the registry sent %d bytes for a layer of %d", sent, layerSize)
	}
}

// A token that expires in the middle is replaced, and nothing is fetched twice.
func TestATokenThatExpiresIsReplaced(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/token:v1", faultyhub.Noise(t, 4*layerSize))
	hub.Set(faultyhub.Fault{TokenFor: 300 * time.Millisecond, Pause: 5 * time.Millisecond})
	n := newFabric(t).add("a")
	pullAll(t, ref, n)
	t.Logf("%d tokens", hub.Issued())
	if sent := sentOf(hub, layers); hub.Issued() < 3 || n.passed() > 0 || sent > 4*layerSize*11/10 {
		t.Errorf("%d tokens, %d bytes sent, %v requests left to containerd", hub.Issued(), sent, n.passed())
	}
}

// A connection that is cut again and again in the middle of pieces costs no byte twice.
func TestAPieceThatIsCutGoesOn(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/cut:v1", faultyhub.Noise(t, layerSize))
	hub.Set(faultyhub.Fault{Cut: 1 << 20})
	n := newFabric(t).add("a")
	pullAll(t, ref, n)
	bytes, requests := hub.Sent(layers[0])
	t.Logf("%d bytes in %d requests", bytes, requests)
	if bytes > layerSize*11/10 || requests < layerSize>>20 || n.passed() > 0 {
		t.Errorf("%d bytes in %d requests for a layer of %d, %v left to containerd", bytes, requests, layerSize, n.passed())
	}
}

// A mirror without room says so, keeps nothing, and has containerd pull past it.
func TestAMirrorWithoutRoomIsPassed(t *testing.T) {
	need.Root(t)
	hub := faultyhub.New(t)
	ref, _ := hub.Push(t, "team/full:v1", faultyhub.Noise(t, layerSize))
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=6m"); err != nil {
		need.Unmet(t, "cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	var log syncbuf.Buffer
	dir := filepath.Join(small, "mirror")
	n := newFabric(t).add("a", func(c *Config) {
		c.Dir, c.Log = dir, slog.New(slog.NewTextHandler(&log, nil))
	})
	pullAll(t, ref, n)
	if n.passed() != 1 || !strings.Contains(log.String(), "no space left on device") {
		t.Errorf("%v requests left to containerd, logged:\n%s", n.passed(), log.String())
	}
	containerdtest.Until(t, "nothing is kept", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0
	})
}

// Another controller, which knows nothing, in the middle of a pull: what others were just fetching may be fetched once
// more, but not all of it by each.
func TestAnotherControllerGoesOnWithAPull(t *testing.T) {
	hub := faultyhub.New(t)
	const size = 4 * layerSize
	ref, layers := hub.Push(t, "team/leader:v1", faultyhub.Noise(t, size))
	hub.Set(faultyhub.Fault{Pause: 10 * time.Millisecond})
	f := newFabric(t)
	nodes := []*node{f.add("a"), f.add("b"), f.add("c")}
	done := make(chan struct{})
	go func() { defer close(done); pullAll(t, ref, nodes...) }()
	containerdtest.Until(t, "all have a piece", func() bool {
		return nodes[0].hasPiece() && nodes[1].hasPiece() && nodes[2].hasPiece()
	})
	f.mu.Lock()
	f.index = blobindex.Index{}
	f.mu.Unlock()
	for _, n := range nodes {
		n.mirror.BeginSession(f.sender(n))
	}
	<-done
	sent := sentOf(hub, layers)
	t.Logf("the registry sent %.3f of the image", float64(sent)/size)
	if sent > 2*size {
		t.Errorf("the registry sent %d bytes for an image of %d", sent, size)
	}
	for _, n := range nodes {
		if n.passed() > 0 {
			t.Errorf("%s: %v requests left to containerd", n.name, n.passed())
		}
	}
}
