// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"wangell.loutres.me/internal/gate"
)

func TestSweeperWarnsOncePerFill(t *testing.T) {
	s := &sweeper{}
	for i, c := range []struct {
		flows, service, source int
		want                   bool
	}{
		{79, 0, 0, false}, {80, 0, 0, true}, {99, 0, 0, false}, {75, 0, 0, false}, {85, 0, 0, false},
		{69, 0, 0, false}, {10, 48, 0, true}, {10, 0, 0, false}, {10, 0, 40, true},
	} {
		s.usage = gate.FlowUsage{Flows: c.flows, MaxFlows: 100, ServiceFlows: c.service, MaxServiceFlows: 60,
			SourceFlows: c.source, MaxSourceFlows: 50}
		if got := s.warns(); got != c.want {
			t.Errorf("step %d, %+v: warns %v, want %v", i, s.usage, got, c.want)
		}
	}
}
