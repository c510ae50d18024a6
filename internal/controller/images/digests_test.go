// SPDX-License-Identifier: Apache-2.0

package images

import (
	"testing"
	"time"

	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

func TestTwoNodesDecideWhatATagStandsFor(t *testing.T) {
	has := func(digest string) imageState {
		return imageState{ImageReport: wire.ImageReport{State: wire.ImagePresent, Digest: digest}}
	}
	failed := func(reason string) imageState {
		return imageState{ImageReport: wire.ImageReport{State: wire.ImageFailed, Reason: reason}}
	}
	away, waits := failed(cri.ReasonUnreachable), imageState{}
	for name, c := range map[string]struct {
		nodes    []imageState
		alone    bool
		digest   string
		disputed bool
	}{
		"the first of two":                    {nodes: []imageState{has("x"), waits}},
		"two agree":                           {nodes: []imageState{has("x"), has("x")}, digest: "x"},
		"two of three":                        {nodes: []imageState{has("y"), has("x"), has("x")}, digest: "x"},
		"two differ":                          {nodes: []imageState{has("y"), has("x")}, disputed: true},
		"two differ, and a third may decide":  {nodes: []imageState{has("y"), has("x"), waits}},
		"no digest, as of a loaded image":     {nodes: []imageState{has(""), has("")}},
		"the only node of the cluster":        {nodes: []imageState{has("x")}, alone: true, digest: "x"},
		"the only node that is to have it":    {nodes: []imageState{has("x")}},
		"the registry is gone for all others": {nodes: []imageState{away, has("x"), away}, digest: "x"},
		"it is gone for one of two others":    {nodes: []imageState{away, has("x"), waits}},
		"another failure":                     {nodes: []imageState{failed(cri.ReasonNotFound), has("x")}},
		"it is gone, and two differ":          {nodes: []imageState{away, has("x"), has("y")}},
		"nobody has it":                       {nodes: []imageState{away, away}},
		"no node":                             {},
	} {
		state := func(node, _ string) imageState { return c.nodes[node[0]-'0'] }
		v := votes{report: state, state: state, alone: func() bool { return c.alone }}
		for i := range c.nodes {
			v.nodes = append(v.nodes, string(rune('0'+i)))
		}
		if digest, disputed := v.of("image"); digest != c.digest || disputed != c.disputed {
			t.Errorf("%s: %q, disputed %v", name, digest, disputed)
		}
	}
}

func TestADisputeEnds(t *testing.T) {
	var d dispute
	now, rounds, last := time.Unix(1e9, 0), 0, time.Duration(0)
	for range 10_000 {
		if pause := d.next(now); pause > 0 {
			if rounds++; pause <= last {
				t.Errorf("pause %v after %v", pause, last)
			}
			last = pause
		}
		now = now.Add(time.Second)
	}
	if rounds != maxDisputes {
		t.Errorf("%d rounds, want %d", rounds, maxDisputes)
	}
}
