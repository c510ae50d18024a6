// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/gate"
)

// addSizes adds the flags for the sizes of the gate's tables.
func addSizes(f *pflag.FlagSet, s *gate.Sizes) {
	d := gate.DefaultSizes()
	f.Uint32Var(&s.Services, "services", d.Services,
		"services that the gate has room for (0.3 KB each, 0.4 KB when used)")
	f.Uint32Var(&s.Pods, "pods", d.Pods,
		"pods of all nodes that the gate has room for (0.4 KB each, and 40 bytes per CPU)")
	f.Uint32Var(&s.Flows, "flows", d.Flows, "connections that the gate has room for (0.03 KB each, 0.23 KB when used)")
	f.Uint32Var(&s.Parked, "parked", d.Parked, "SYNs of sleeping services that the gate has room for (1.9 KB each)")
}
