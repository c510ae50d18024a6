// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/ownns"
)

func TestMain(m *testing.M) { ownns.Main(m.Run) }

func pool(t *testing.T, change func(*Config)) (*Pool, Config) {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "netns"), Addresses: netip.MustParsePrefix("10.46.128.0/17"),
		DevicePrefix: "wgtest1", Log: slog.Default()}
	if change != nil {
		change(&cfg)
	}
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Clean(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if left := devices(t); len(left) > 0 {
			t.Errorf("devices are left: %q", left)
		}
	})
	return p, cfg
}

func devices(t *testing.T) []string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func take(t *testing.T, p *Pool) Network {
	t.Helper()
	n, err := p.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Release(n.Name); err != nil {
			t.Error(err)
		}
	})
	return n
}

// A connection works at once, in both directions, without ARP.
func TestNetworkWorksAtOnce(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: hostNet(netip.MustParseAddr("10.46.0.1"))}); err != nil {
		t.Fatal(err)
	}
	p, _ := pool(t, nil)
	n := take(t, p)
	var l net.Listener
	inside(t, n.Netns, func() {
		l, err = net.Listen("tcp", "[::]:80") // also below 1024, and for IPv6
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(n.Addr, 80).String(), 60*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("connected in", time.Since(begin))
	_ = c.Close()
	link, err := netlink.LinkByName(n.Name)
	if err != nil {
		t.Fatal(err)
	}
	if link.Attrs().Index != n.HostDevice {
		t.Errorf("device %d, want %d", n.HostDevice, link.Attrs().Index)
	}
	neighbors, err := netlink.NeighList(n.HostDevice, netlink.FAMILY_V4)
	if err != nil || len(neighbors) != 1 || neighbors[0].State != netlink.NUD_PERMANENT {
		t.Errorf("neighbors %v, %v", neighbors, err)
	}
	if addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL); err != nil || len(addrs) != 0 {
		t.Errorf("the host's device has addresses %v, %v", addrs, err)
	}
	inside(t, n.Netns, func() {
		if !gro(t, Device) {
			t.Error("GRO is off at the pod's end")
		}
		eth, err := netlink.LinkByName(Device)
		if err != nil {
			t.Error(err)
			return
		}
		addrs, err := netlink.AddrList(eth, netlink.FAMILY_ALL)
		if err != nil || len(addrs) != 1 || !addrs[0].Equal(netlink.Addr{IPNet: hostNet(n.Addr)}) {
			t.Errorf("%s has %v, %v", Device, addrs, err)
		}
	})
}

// inside runs f in a network namespace.
func inside(t *testing.T, path string, f func()) {
	t.Helper()
	err := onThread(func() error {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return err
		}
		f()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadyNetworksAreTakenFirst(t *testing.T) {
	p, _ := pool(t, func(c *Config) { c.Ready = 2 })
	for i, want := range []bool{true, true, false} {
		if made, err := p.Refill(); err != nil || made != want {
			t.Fatalf("refill %d: %v, %v", i, made, err)
		}
	}
	if !p.Ready() || len(devices(t)) != 2 {
		t.Errorf("devices %q", devices(t))
	}
	first := devices(t)
	a, b := take(t, p), take(t, p)
	if !slices.Contains(first, a.Name) || !slices.Contains(first, b.Name) || p.Ready() {
		t.Error("Take gave another network than a ready one")
	}
	c := take(t, p)
	if slices.Contains(first, c.Name) {
		t.Error("one network was given twice")
	}
}

func TestCleanRemovesWhatIsNotAdopted(t *testing.T) {
	p, cfg := pool(t, func(c *Config) { c.Ready = 1 })
	kept, left := take(t, p), take(t, p)
	if _, err := p.Refill(); err != nil {
		t.Fatal(err)
	}
	// Left behind by a killed process: networks, and a file to which no namespace is bound yet.
	if err := os.WriteFile(filepath.Join(cfg.Dir, "wgtest1half"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	next, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if got, err := next.Adopt(kept.Name); err != nil || got != kept {
		t.Errorf("adopted %+v, %v; want %+v", got, err, kept)
	}
	if _, err := next.Adopt("wgtest1none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("adopted what does not exist: %v", err)
	}
	if err := next.Clean(); err != nil {
		t.Fatal(err)
	}
	if got := devices(t); !slices.Equal(got, []string{kept.Name}) {
		t.Errorf("devices %q, want only %s; %s was left", got, kept.Name, left.Name)
	}
	if files, err := os.ReadDir(cfg.Dir); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
}

// An earlier version named devices in another way. Its pods go on, with the devices under a name that no firewall takes
// for another program's.
func TestDevicesOfAnEarlierVersionAreRenamed(t *testing.T) {
	before, cfg := pool(t, func(c *Config) { c.DevicePrefix = "wgold12" })
	kept, left := take(t, before), take(t, before)
	cfg.DevicePrefix, cfg.FormerPrefix = "wvold12", "wgold12"
	next, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	renamed := func(n Network) string { return "wv" + strings.TrimPrefix(n.Name, "wg") }
	want := []string{renamed(kept), renamed(left)}
	slices.Sort(want)
	if got := devices(t); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Fatalf("devices %q, want %q", got, want)
	}
	got, err := next.Adopt(kept.Name)
	if err != nil || got != kept {
		t.Errorf("adopted %+v, %v; want %+v", got, err, kept)
	}
	if err := got.Do(func() error { return nil }); err != nil {
		t.Errorf("its namespace: %v", err)
	}
	link, err := netlink.LinkByName(renamed(kept))
	if err != nil {
		t.Fatal(err)
	}
	if up := link.Attrs().Flags&net.FlagUp != 0; !up {
		t.Error("the device is down")
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	if err != nil || len(routes) != 1 {
		t.Errorf("routes %v, %v", routes, err)
	}
	if err := next.Clean(); err != nil {
		t.Fatal(err)
	}
	if got := devices(t); !slices.Equal(got, []string{renamed(kept)}) {
		t.Errorf("devices %q, want only %s", got, renamed(kept))
	}
	fresh, err := next.Take()
	if err != nil || !strings.HasPrefix(fresh.Name, "wvold12") {
		t.Errorf("a new network: %+v, %v", fresh, err)
	}
	for _, name := range []string{kept.Name, fresh.Name} {
		if err := next.Release(name); err != nil {
			t.Error(err)
		}
	}
	if files, err := os.ReadDir(cfg.Dir); err != nil || len(files) != 0 || len(devices(t)) != 0 {
		t.Errorf("left: %v, %q, %v", files, devices(t), err)
	}
}

func TestAddressesAreUsedOnce(t *testing.T) {
	p, _ := pool(t, func(c *Config) { c.Addresses = netip.MustParsePrefix("10.46.128.8/29") })
	seen := map[netip.Addr]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	var networks []Network
	for range 6 {
		all.Go(func() {
			n, err := p.Take()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[n.Addr] || !p.cfg.Addresses.Contains(n.Addr) || n.Addr == p.cfg.Addresses.Addr() ||
				!p.cfg.Addresses.Contains(n.Addr.Next()) {
				t.Errorf("address %v", n.Addr)
			}
			seen[n.Addr] = true
			networks = append(networks, n)
		})
	}
	all.Wait()
	if _, err := p.Take(); err == nil {
		t.Error("a seventh address in a /29")
	}
	for _, n := range networks {
		if err := p.Release(n.Name); err != nil {
			t.Error(err)
		}
	}
	take(t, p)
}

// gro reports whether GRO is enabled on a device of this thread's namespace.
func gro(t *testing.T, device string) bool {
	t.Helper()
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	features, err := e.Features(device)
	if err != nil {
		t.Fatal(err)
	}
	return features[groFeature]
}

// A proxy in it gets the answers to what it sends from other addresses.
func TestNetworkCanReceiveWhatIsForOthers(t *testing.T) {
	p, _ := pool(t, nil)
	n := take(t, p)
	for range 2 {
		if err := n.ReceiveAll(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Do(func() error {
		routes, err := netlink.RouteGetWithOptions(net.IPv4(203, 0, 113, 7), &netlink.RouteGetOptions{
			Iif: Device, SrcAddr: net.IPv4(203, 0, 113, 8),
		})
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			t.Errorf("what comes in for another address takes %v (%v), want it to be local", routes, err)
		}
		routes, err = netlink.RouteGet(net.IPv4(203, 0, 113, 7))
		if err != nil || len(routes) != 1 || !routes[0].Gw.Equal(Gateway.AsSlice()) {
			t.Errorf("what is sent there takes %v (%v), want %v", routes, err, Gateway)
		}
		rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: behalfTable}, netlink.RT_FILTER_TABLE)
		if err != nil || len(rules) != 1 {
			t.Errorf("rules %v (%v), want one", rules, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A machine whose own network lies in the range of pods, which is large: hosts there keep their addresses.
func TestAddressesOfTheMachinesNetworksAreNotAssigned(t *testing.T) {
	p, _ := pool(t, func(c *Config) { c.Addresses = netip.MustParsePrefix("10.46.128.0/28") })
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan"}, PeerName: "lan-peer"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	lan, err := netlink.ParseAddr("10.46.128.9/29")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.AddrAdd(link, lan), netlink.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		n := take(t, p)
		if lan.Contains(n.Addr.AsSlice()) {
			t.Errorf("a pod has the address %s of the machine's network %s", n.Addr, lan)
		}
	}
	if _, err := p.Take(); err == nil || !strings.Contains(err.Error(), "networks of this machine") {
		t.Errorf("an eighth network: %v", err)
	}
}
