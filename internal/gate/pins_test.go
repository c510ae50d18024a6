// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// An upgrade from a version whose maps have the same layout under other names loses nothing.
func TestOpenAdoptsMapsPinnedUnderEarlierNames(t *testing.T) {
	w := &world{TB: t, podLink: make([]netlink.Link, 4), nic: veth(t, "nic")}
	w.podLink[1] = veth(t, "pod1")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"}}
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
	connected(w)
	w.must(w.g.Close())
	for from, to := range renamedMaps {
		w.must(os.Rename(filepath.Join(cfg.mapsDir(), to), filepath.Join(cfg.mapsDir(), from)))
	}

	open()
	w.wantCounts(1, 0, 1)
	if s := w.g.ServiceState(vip); s != Warm {
		t.Errorf("service state %d, want warm", s)
	}
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	for from := range renamedMaps {
		if _, err := os.Stat(filepath.Join(cfg.mapsDir(), from)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pin %s remains: %v", from, err)
		}
	}
}

// newReopened returns a world with one pod's device, and the configuration of its gate, which the test closes, opens
// again and removes.
func newReopened(t *testing.T) (*world, Config) {
	t.Helper()
	w := &world{TB: t, podLink: make([]netlink.Link, 4), nic: veth(t, "nic")}
	w.podLink[1] = veth(t, "pod1")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"}}
	var err error
	w.g, err = Open(cfg)
	w.must(err)
	return w, cfg
}
