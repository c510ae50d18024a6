// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"testing"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/machine/instance"
)

// gateFlags are the flags of the gate as up and the daemon have them.
func gateFlags(c *instance.Config) *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.WakeBudgets = &gate.WakeBudgets{}
	addSizes(f, &c.Sizes)
	addWakeBudgets(f, c.WakeBudgets)
	return f
}

// The gate's flags of up reach the daemon that it starts.
func TestUpPassesTheGatesFlagsToTheDaemon(t *testing.T) {
	for name, given := range map[string][]string{
		"defaults": nil,
		"all": {
			"--services", "10", "--pods", "20", "--flows", "1000", "--parked", "30", "--max-flows-per-source", "40",
			"--max-flows-per-service", "50", "--wake-budget-node", "7,0.5", "--wake-budget-service", "0",
			"--wake-budget-source", "3,2", "--wake-budget-proven", "9,1",
			"--wake-unproven", "0",
		},
	} {
		var up, daemon instance.Config
		if err := gateFlags(&up).Parse(given); err != nil {
			t.Fatal(err)
		}
		if err := gateFlags(&daemon).Parse(up.GateArgs()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(up, daemon) {
			t.Errorf("%s: the daemon gets %+v %+v, up has %+v %+v", name, daemon.Sizes, daemon.WakeBudgets, up.Sizes,
				up.WakeBudgets)
		}
	}
	for _, cmd := range []*pflag.FlagSet{newUp(&globals{}).Flags(), newDaemon(&globals{}).Flags()} {
		gateFlags(&instance.Config{}).VisitAll(func(f *pflag.Flag) {
			if have := cmd.Lookup(f.Name); have == nil || have.DefValue != f.DefValue {
				t.Errorf("--%s: %+v, want the default %s", f.Name, have, f.DefValue)
			}
		})
	}
}
