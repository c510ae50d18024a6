// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/gate"
)

// addWakeBudgets adds the flags of the budgets of wakes.
func addWakeBudgets(flags *pflag.FlagSet, b *gate.WakeBudgets) {
	*b = gate.DefaultWakeBudgets()
	flags.Var(&b.Node, "wake-budget-node",
		"wakes on this node without a proof of the client: so many at once, and so many a second; 0 is without limit")
	flags.Var(&b.Service, "wake-budget-service", "the same for each service")
	flags.Var(&b.Source, "wake-budget-source", "the same for the clients of each /24")
	flags.Uint32Var(&b.Parked, "wake-unproven", b.Parked,
		"connection requests that a waking service keeps for clients without a proof; 0 is without limit")
}
