// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/gate"
)

// addSizes adds the flags for the sizes of the gate's tables, and for the shares of the flow table.
func addSizes(f *pflag.FlagSet, s *gate.Sizes) {
	d := gate.DefaultSizes()
	f.Uint32Var(&s.Services, "services", d.Services,
		"services that the gate has room for (0.3 KB each, 0.4 KB when used)")
	f.Uint32Var(&s.Pods, "pods", d.Pods,
		"pods of all nodes that the gate has room for (0.4 KB each, and 40 bytes per CPU)")
	f.Uint32Var(&s.Flows, "flows", d.Flows, "connections that the gate has room for (0.03 KB each, 0.23 KB when used)")
	f.Uint32Var(&s.Parked, "parked", d.Parked, "SYNs of sleeping services that the gate has room for (1.9 KB each)")
	f.Uint32Var(&s.FlowsPerSource, "max-flows-per-source", 0,
		"connections of one client address, of all that the gate has room for (default: half of them)")
	f.Uint32Var(&s.FlowsPerService, "max-flows-per-service", 0, "connections of one service (default: three quarters)")
}

// addWakeBudgets adds the flags of the budgets of wakes.
func addWakeBudgets(flags *pflag.FlagSet, b *gate.WakeBudgets) {
	*b = gate.DefaultWakeBudgets()
	flags.Var(&b.Node, "wake-budget-node",
		"wakes on this node without a proof of the client: so many at once, and so many a second; 0 is without limit")
	flags.Var(&b.Service, "wake-budget-service", "the same for each service")
	flags.Var(&b.Source, "wake-budget-source", "the same for the clients of each /24")
	flags.Var(&b.Proven, "wake-budget-proven",
		"wakes by the clients of each /24 with a proof, over all services; beyond it their connection requests are dropped")
	flags.Uint32Var(&b.Parked, "wake-unproven", b.Parked,
		"connection requests that a waking service keeps for clients without a proof; 0 is without limit")
}
