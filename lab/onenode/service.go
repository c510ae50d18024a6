// SPDX-License-Identifier: Apache-2.0

package onenode

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// Exec runs a command in a container of a service.
func (i *Instance) Exec(ctx context.Context, service string, argv ...string) error {
	cmd := i.Net.Node.Command(ctx, append([]string{i.wangell, "exec", "--run-dir", i.runDir, service, "--"}, argv...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("wangell exec %s: %w: %s", service, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Address returns the address and port of the only service.
func (i *Instance) Address(ctx context.Context) (netip.AddrPort, error) {
	services, err := i.Control.Status(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(services) != 1 {
		return netip.AddrPort{}, fmt.Errorf("the instance has %d services, want 1", len(services))
	}
	addr, err := netip.ParseAddr(services[0].Service.Status.LoadBalancerIP)
	return netip.AddrPortFrom(addr, uint16(services[0].Service.Spec.Port)), err
}

// AddressOf returns the address and port of a service.
func (i *Instance) AddressOf(ctx context.Context, name string) (netip.AddrPort, error) {
	services, err := i.Control.Status(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, s := range services {
		if s.Service.Name == name {
			addr, err := netip.ParseAddr(s.Service.Status.LoadBalancerIP)
			return netip.AddrPortFrom(addr, uint16(s.Service.Spec.Port)), err
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the instance has no service %s", name)
}
