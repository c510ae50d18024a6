// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"wangell.loutres.me/test/testutil/netlab"
)

// inNetns runs f on a thread in the network namespace at path. Processes that f starts are in it, too.
func inNetns(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is only unlocked if it has returned to its namespace. Otherwise it ends with the goroutine.
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("get network namespace: %w", err)
			return
		}
		defer home.Close()
		there, err := netns.GetFromPath(path)
		if err != nil {
			done <- fmt.Errorf("network namespace %s: %w", path, err)
			return
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// addNetns creates a named network namespace with its loopback device up. The calling thread does not move.
func addNetns(name string) error {
	if _, err := os.Stat(filepath.Join(netlab.Dir, name)); err == nil {
		return fmt.Errorf("network namespace %s exists: another cluster of that name runs, or run `down` first", name)
	}
	if err := netlab.ShareDir(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: NewNamed moves the thread into the new namespace
		ns, err := netns.NewNamed(name)
		if err != nil {
			done <- fmt.Errorf("make network namespace %s: %w", name, err)
			return
		}
		defer ns.Close()
		done <- linkUp("lo")
	}()
	return <-done
}

// deleteNetns removes a named network namespace. A missing one is not an error.
func deleteNetns(name string) error {
	if err := netns.DeleteNamed(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("device %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring up device %s: %w", name, err)
	}
	return nil
}

// makeLAN creates the namespace of the LAN with its bridge, which is the default gateway on it.
func makeLAN(p plan) error {
	if err := addNetns(p.netns("lan")); err != nil {
		return err
	}
	return inNetns(p.netnsPath("lan"), func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		br.Name = lanBridge
		// With an address of its own, the bridge does not take that of a machine that is added later. The others would not
		// reach it until they ask for its address again.
		br.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 1}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("make bridge %s: %w", lanBridge, err)
		}
		// A switch does not filter. The file is missing if bridge netfilter is not loaded.
		for _, f := range []string{"iptables", "ip6tables", "arptables"} {
			if err := setSysctl("net/bridge/bridge-nf-call-"+f, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if err := addAddress(br, netip.PrefixFrom(p.Gateway, p.LAN.Bits())); err != nil {
			return err
		}
		return linkUp(lanBridge)
	})
}

// joinLAN creates the namespace of a host on the LAN, with its link and its routes.
func joinLAN(p plan, host string, ip netip.Addr) error {
	if err := addNetns(p.netns(host)); err != nil {
		return err
	}
	there, err := netns.GetFromPath(p.netnsPath(host))
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", p.netns(host), err)
	}
	defer there.Close()
	err = inNetns(p.netnsPath("lan"), func() error {
		br, err := netlink.LinkByName(lanBridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", lanBridge, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = host
		attrs.MasterIndex = br.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: nodeInterface, PeerNamespace: netlink.NsFd(there),
			PeerHardwareAddr: mac(ip)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make link of %s to the LAN: %w", host, err)
		}
		return linkUp(host)
	})
	if err != nil {
		return err
	}
	return inNetns(p.netnsPath(host), func() error {
		l, err := netlink.LinkByName(nodeInterface)
		if err != nil {
			return fmt.Errorf("device %s of %s: %w", nodeInterface, host, err)
		}
		if err := addAddress(l, netip.PrefixFrom(ip, p.LAN.Bits())); err != nil {
			return err
		}
		if err := linkUp(nodeInterface); err != nil {
			return err
		}
		return addRoute(netip.MustParsePrefix("0.0.0.0/0"), p.Gateway)
	})
}

// leaveLAN removes the link and the namespace of a host. The link is removed first, because the kernel removes an
// unnamed namespace, and the link with it, only after a while.
func leaveLAN(p plan, host string) error {
	err := inNetns(p.netnsPath("lan"), func() error {
		l, err := netlink.LinkByName(host)
		if err != nil {
			return fmt.Errorf("link of %s to the LAN: %w", host, err)
		}
		return netlink.LinkDel(l)
	})
	var gone netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &gone) {
		return err
	}
	return deleteNetns(p.netns(host))
}

// mac returns the hardware address of a host. It stays the same when a node is restarted, as on a real one.
func mac(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x02, 0, b[0], b[1], b[2], b[3]}
}

// setLANLink sets the link of a host up or down at the bridge: the host loses its carrier.
func setLANLink(p plan, host string, up bool) error {
	return inNetns(p.netnsPath("lan"), func() error {
		l, err := netlink.LinkByName(host)
		if err != nil {
			return fmt.Errorf("link of %s to the LAN: %w", host, err)
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// routePods adds routes to the pods of all nodes but the host itself.
func routePods(p plan, host string) error {
	return inNetns(p.netnsPath(host), func() error {
		for _, n := range p.Nodes {
			if n.Name == host {
				continue
			}
			if err := addRoute(n.Pods, n.IP); err != nil {
				return err
			}
		}
		return nil
	})
}

// prepareNodeNetwork enables forwarding in a node's namespace and masquerades pods that leave the pod network.
func prepareNodeNetwork(p plan, n nodePlan) error {
	return inNetns(p.netnsPath(n.Name), func() error {
		if err := setSysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
		if p.CNI != cniBridge {
			return nil // flanneld and cilium-agent masquerade
		}
		rules := fmt.Sprintf(`table ip cluster-masquerade {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr %s ip daddr != %s oifname %q masquerade
	}
}
`, n.Pods, p.Pods, nodeInterface)
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("masquerade rule of %s: %w: %s", n.Name, err, out)
		}
		return nil
	})
}

func addAddress(l netlink.Link, prefix netip.Prefix) error {
	ip := prefix.Addr().As4()
	a := &netlink.Addr{IPNet: &net.IPNet{IP: ip[:], Mask: net.CIDRMask(prefix.Bits(), 32)}}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %s on %s: %w", prefix, l.Attrs().Name, err)
	}
	return nil
}

func addRoute(to netip.Prefix, via netip.Addr) error {
	dst, gw := to.Addr().As4(), via.As4()
	r := &netlink.Route{Dst: &net.IPNet{IP: dst[:], Mask: net.CIDRMask(to.Bits(), 32)}, Gw: gw[:]}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

// setSysctl sets a sysctl of the network namespace of the calling thread, which /proc/sys/net follows.
func setSysctl(name, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s: %w", name, err)
	}
	return nil
}
