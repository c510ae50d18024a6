// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"math"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/lab/report"
)

// Samples are the measurements of one run.
type Samples struct {
	// Calm is the traffic of Warm without an attack. Warm, One and Many are floods of a warm service, of one sleeping
	// service and of many. In Vanish, clients vanish.
	Calm Part `json:"calm"`
	// CalmMany are the first requests to as many sleeping services as in Many, of wakeProof Auto, without an attack.
	CalmMany Part `json:"calm_many_cold"`

	Warm   Part `json:"warm"`
	One    Part `json:"one_cold"`
	Many   Part `json:"many_cold"`
	Vanish Part `json:"vanish"`

	// Peers are floods of a warm service on a cluster, if there was one.
	Peers []Peer `json:"peers,omitempty"`

	// Vanished is the number of clients that vanished, VanishedLeft the number of their flows that the pods still count
	// at the end.
	Vanished     int `json:"vanished"`
	VanishedLeft int `json:"vanished_flows_left"`
	// Scanned is the number of sleeping services of each wakeProof in the scanned range, Scans the scans, one after
	// another.
	Scanned int        `json:"scanned_services"`
	Scans   []ScanPass `json:"scans"`
}

// ScanPass is one scan of the range: a SYN to each of a few ports of each address.
type ScanPass struct {
	// Sent is the number of SYNs, and Seconds how long that took.
	Sent    int     `json:"syns"`
	Seconds float64 `json:"seconds"`
	// Woken is how many sleeping services this scan and those before it have woken, by spec.wakeProof.
	Woken map[string]int `json:"woken"`
}

// Part is a part of the experiment.
type Part struct {
	// Sent is the number of forged SYNs, Arrived the number of packets that the node's device received meanwhile,
	// including those of genuine clients, and Seconds how long SYNs were sent. A busy device drops packets.
	Sent    int     `json:"forged_syns"`
	Arrived int     `json:"arrived"`
	Seconds float64 `json:"seconds"`
	// Started is the number of pods that the attack started before any genuine client came.
	Started int `json:"pods_started_by_forged"`
	// Near and Far are the requests to the attacked services by clients with a short and a long round trip. Other are
	// requests to another service by clients with a short one.
	Near  Requests `json:"near"`
	Far   Requests `json:"far"`
	Other Requests `json:"other"`
}

// Peer holds the results of one peer on a cluster.
type Peer struct {
	// Name is one of the names of peers.
	Name string `json:"name"`
	// Calm are requests without an attack; Flood is the attack.
	Calm  Requests `json:"calm"`
	Flood Part     `json:"flood"`
}

// Names of peers.
const (
	PeerWangell   = "Wangell"
	PeerKnative   = "Knative"
	PeerKubeProxy = "kube-proxy"
)

// Requests are requests of genuine clients, each on a connection of its own.
type Requests struct {
	// Times are from connect() to the end of the answer, in milliseconds and in the order of their ends.
	Times []float64 `json:"ms"`
	// Failed counts those without an answer; Errors are the first few reasons.
	Failed int      `json:"failed"`
	Errors []string `json:"errors,omitempty"`
}

// rate returns the forged SYNs per second that were sent and arrived. Genuine clients' packets among those that
// arrived are few.
func (p Part) rate() float64 { return float64(min(p.Sent, p.Arrived)) / p.Seconds }

// woken returns how many services with a wakeProof a scan and the scans before it have woken, or NaN without such a
// scan.
func (s Samples) woken(pass int, proof v1alpha1.WakeProof) float64 {
	if pass >= len(s.Scans) {
		return math.NaN()
	}
	return float64(s.Scans[pass].Woken[string(proof)])
}

// peer returns the requests during the flood of a peer, or nil if it was not measured.
func (s Samples) peer(name string) *Requests {
	for i := range s.Peers {
		if s.Peers[i].Name == name {
			return &s.Peers[i].Flood.Near
		}
	}
	return nil
}

func (r Requests) n() float64 { return float64(len(r.Times) + r.Failed) }

// failed returns the number of failed requests, or NaN if they were not measured.
func (r *Requests) failed() float64 {
	if r == nil {
		return math.NaN()
	}
	return float64(r.Failed)
}

// p returns a percentile in milliseconds, or NaN if there is none.
func (r *Requests) p(percent float64) float64 {
	if r == nil {
		return math.NaN()
	}
	return report.Percentile(r.Times, percent)
}
