// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// What others remove or change of a network on the machine's side comes back, whether the process has made the network
// or adopted it, and nothing is touched that is as it was made.
func TestWhatOthersRemoveIsPutBack(t *testing.T) {
	forward := func(c *Config) { c.Forward = true }
	first, cfg := pool(t, forward)
	n := take(t, first)
	second, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := second.Adopt(n.Name); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		var all []string
		for _, what := range []string{
			"ip -o link show dev %[1]s | grep -o ',UP[,>]'", "ip neigh show dev %[1]s", "ip route show dev %[1]s",
			"sysctl net.ipv4.conf.%[1]s.rp_filter net.ipv4.conf.%[1]s.forwarding net.ipv6.conf.%[1]s.disable_ipv6",
		} {
			out, _ := exec.Command("sh", "-c", fmt.Sprintf(what, n.Name)).Output()
			all = append(all, string(out))
		}
		return strings.Join(all, "\n")
	}
	made := state()
	for name, p := range map[string]*Pool{"made": first, "adopted": second} {
		if err := p.Keep(); err != nil || len(p.Restored()) > 0 {
			t.Errorf("%s: %v, %v put back of an intact network", name, err, p.Restored())
		}
		for _, remove := range []struct{ kind, script string }{
			{partRoute, "ip route del %[2]s/32"},
			{partNeighbor, "ip neigh del %[2]s dev %[1]s"},
			{partNeighbor, "ip neigh replace %[2]s lladdr 02:00:00:00:00:01 nud permanent dev %[1]s"},
			{partSysctl, "sysctl -qw net.ipv4.conf.%[1]s.rp_filter=1"},
			{partSysctl, "sysctl -qw net.ipv4.conf.%[1]s.forwarding=0"},
			{partSysctl, "sysctl -qw net.ipv6.conf.%[1]s.disable_ipv6=0"},
			{partLink, "ip link set %[1]s down"},
		} {
			script := fmt.Sprintf(remove.script, n.Name, n.Addr)
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", script, err, out)
			}
			if state() == made {
				t.Errorf("%s changes nothing", script)
			}
			before := p.Restored()[remove.kind]
			if err := p.Keep(); err != nil {
				t.Fatal(err)
			}
			if now := state(); now != made || p.Restored()[remove.kind] == before {
				t.Errorf("%s, after %s: counted %v\n%s\nwant\n%s", name, script, p.Restored(), now, made)
			}
		}
	}
}

// A network that is removed, or whose device somebody has removed, is left alone.
func TestRemovedNetworksAreNotPutBack(t *testing.T) {
	p, _ := pool(t, nil)
	n := take(t, p)
	if out, err := exec.Command("ip", "link", "del", n.Name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	gone := take(t, p)
	if err := p.Release(gone.Name); err != nil {
		t.Fatal(err)
	}
	if err := p.Keep(); err != nil || len(p.Restored()) > 0 {
		t.Errorf("%v, put back %v", err, p.Restored())
	}
}
