// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// With 127.0.0.1 as its only address, a machine would send to services from 0.0.0.0.
func TestMachineWithoutAnAddressReachesServices(t *testing.T) {
	newNamespace(t, "lonely")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, DefaultInterfaces: true}
	wantSource := func(want string) error {
		got := sh(t, "ip -n lonely route get 10.46.100.9")
		if !strings.Contains(got, " src "+want+" ") {
			return fmt.Errorf("the source is not %s: %s", want, got)
		}
		return nil
	}
	open := func() (g *Gate) {
		t.Helper()
		if err := inNamespace("lonely", func() (err error) { g, err = Open(cfg); return err }); err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := open()
	if err := wantSource("169.254.46.1"); err != nil {
		t.Error(err)
	}
	// With an address of its own, the machine uses that from the next start on.
	sh(t, `ip -n lonely link add up0 type veth peer name up1; ip -n lonely addr add 192.0.2.7/24 dev up0
		ip -n lonely link set up0 up`)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	g = open()
	t.Cleanup(func() {
		if err := errors.Join(g.Close(), inNamespace("lonely", func() error { return Remove(cfg.Dir) })); err != nil {
			t.Error(err)
		}
	})
	if err := wantSource("192.0.2.7"); err != nil {
		t.Error(err)
	}
	// It may lose that address while the gate runs.
	sh(t, "ip -n lonely addr del 192.0.2.7/24 dev up0")
	eventually(t, func() error { return wantSource("169.254.46.1") })
}
