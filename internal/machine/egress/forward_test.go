// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"slices"
	"testing"
)

func TestForwardingIsSwitchedOnOnlyWhereItIsOff(t *testing.T) {
	for _, c := range []struct {
		name            string
		devices, before []string
		on              []string // where it is on; "all": in a router
		want            []string
	}{
		{"off everywhere", []string{"eth0", "eth1"}, nil, nil, []string{"eth0", "eth1"}},
		{"on at one by somebody else", []string{"eth0", "eth1"}, nil, []string{"eth1"}, []string{"eth0"}},
		{"switched on before", []string{"eth0"}, []string{"eth0"}, []string{"eth0"}, []string{"eth0"}},
		{"switched off again by somebody else", []string{"eth0"}, []string{"eth0"}, nil, []string{"eth0"}},
		{"a device that leads nowhere now", []string{"eth1"}, []string{"eth0"}, []string{"eth0"}, []string{"eth0", "eth1"}},
		{"a device that is gone", []string{"eth1"}, []string{"eth0"}, nil, []string{"eth1"}},
		{"a router", []string{"eth0"}, nil, []string{"all", "eth0"}, nil},
		{"made a router meanwhile", []string{"eth0"}, []string{"eth0"}, []string{"all", "eth0"}, nil},
	} {
		got := toSwitch(c.devices, c.before, func(device string) bool { return slices.Contains(c.on, device) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
