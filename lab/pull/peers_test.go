// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"math"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// TestNodesShareAPull has three nodes pull an image at once behind a slow link, without and with peers, and with each
// fault. The image is small, and the link so slow that it, not the processor, bounds the pulls.
func TestNodesShareAPull(t *testing.T) {
	need.Root(t)
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cases := []peerCase{{nodes: 3}, {nodes: 3, peers: true}}
	for _, fault := range AllPeerFaults {
		cases = append(cases, peerCase{nodes: 3, peers: true, fault: fault})
	}
	r := runs(t, Params{
		Wangell: wangell, Parts: []string{PartPeers}, PeersLink: "40mbit", PeersSize: 24_000_000, cases: cases,
	})[0]
	for _, c := range []struct {
		key         string
		least, most float64
	}{
		{"origin_bytes_ratio_off", 2.9, 3.2},
		{"origin_bytes_ratio_on", 0.99, 1.1},
	} {
		if got := r.Summary.Get(c.key); math.IsNaN(got) || got < c.least || got > c.most {
			t.Errorf("%s is %v, want %v to %v", c.key, got, c.least, c.most)
		}
	}
	for _, p := range r.Raw.(peerPulls) {
		t.Logf("%+v", p)
		done, most := 3, 2.0 // another controller has pieces fetched again that were in progress
		switch p.Fault {
		case "":
			most = 3.2
		case FaultPeerDies: // with what only it had
			done, most = 2, 2
		case FaultGarbage: // both others fetch what is wrong again, some of it from each other
			done, most = 2, 2.2
			if p.Banned < 2 {
				t.Errorf("two nodes got wrong bytes; %v times the one that sent them was found out", p.Banned)
			}
		case FaultRegistryGone:
			done, most = 2, 0.01
		}
		if len(p.Done) != done || p.OriginRatio > most {
			t.Errorf("%q: %d nodes have the image, want %d; the registry sent it %v times, want at most %v", p.Fault,
				len(p.Done), done, p.OriginRatio, most)
		}
	}
}

func TestPeersSummaryFollowsFromTheSamples(t *testing.T) {
	var raw peerPulls
	for i, c := range peerCases(1) {
		p := PeerPull{
			Nodes: c.nodes, Peers: c.peers, Fault: c.fault, Open: c.open, Last: 10 + float64(i), OriginRatio: 1,
			Received: 8 + float64(i),
		}
		if !c.peers {
			p.OriginRatio = float64(c.nodes)
		}
		raw = append(raw, p)
	}
	r := newPeersReport(raw)
	for key, want := range map[string]float64{
		"peers_1_s_off": 10, "peers_3_s_on": 15, "peers_last_ratio": 1.5, "origin_bytes_ratio_off": 3,
		"origin_bytes_ratio_on": 1, "peers_received_ratio": 13. / 8, "peers_1_s_open": 16, "peers_3_s_open": 17,
		"peers_s_leader": 21,
	} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for _, raw := range []peerPulls{raw, raw[:1]} {
		if err := newPeersReport(raw).Write(t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}
