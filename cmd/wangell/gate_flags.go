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
		"connections from one client address (default: half of --flows)")
	f.Uint32Var(&s.FlowsPerService, "max-flows-per-service", 0,
		"connections of one service (default: three quarters of --flows)")
}

// addWakeBudgets adds the flags of the budgets of wakes.
func addWakeBudgets(flags *pflag.FlagSet, b *gate.WakeBudgets) {
	*b = gate.DefaultWakeBudgets()
	flags.Var(&b.Node, "wake-budget-node",
		"wakes by unproven clients on this node: burst, and rate per second; 0: unlimited")
	flags.Var(&b.Service, "wake-budget-service", "unproven wakes of each service: burst, and rate per second")
	flags.Var(&b.Source, "wake-budget-source", "unproven wakes by clients of each /24: burst, and rate per second")
	flags.Var(&b.Proven, "wake-budget-proven",
		"wakes by proven clients of each /24, over all services; beyond it their connection requests are dropped")
	flags.Uint32Var(&b.Parked, "wake-unproven", b.Parked,
		"connection requests that a waking service keeps for unproven clients; 0: unlimited")
}
