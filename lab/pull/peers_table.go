// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

const howPeers = `Nodes that pull at once are network namespaces, each with a containerd and a daemon (wangell
daemon), beside one with the registry, whose sending side is limited, and one with the controller,
connected by the wire as in a cluster. The image has ten layers of random bytes. A service that all
nodes are to hold is created, and the time is taken from there until the CRI of the last node has
the image by its digest. On and off: the daemons have --peers, or not. What the registry has sent is
what its device has sent, with the headers of packets, and until when 99 % of it. All nodes share
the processor and the disk of one machine, which nodes of a cluster do not. So there is also the
time until the last node's device has received 99 % of its bytes, before it has verified and
unpacked them; the processor time of containerds, daemons (their mirrors, and the gate) and
registry; and pulls without peers and without a limit of the link, which is what the machine needs
for the rest. The faults: with peer_dies one of three nodes gets SIGKILL, daemon and containerd,
once it has 30 % of the image; with garbage one node has the image, with a wrong byte in the middle
of each layer, and the others begin; with registry_gone one node has the image, the registry is
stopped, and the others begin; with leader the controller is replaced by one that knows nothing,
once a node has 30 %. Times are of the nodes that go on.`

// newPeersReport makes the report of the pulls by several nodes. The caller adds time, parameters and versions.
func newPeersReport(raw peerPulls) *report.Report {
	return &report.Report{
		Name: peersName, Title: "Nodes that pull an image at once, and share it", Raw: raw, How: howPeers,
		Answer:  peersAnswer,
		Summary: raw.summary(), Tables: []report.Table{raw.table()}, Figure: func(c draw.Canvas) error {
			raw.plot().Draw(c)
			return nil
		},
	}
}

// of returns a figure of the pulls of a case.
func (raw peerPulls) of(c peerCase, f func(PeerPull) float64) []float64 {
	return report.Collect(raw, func(p PeerPull) (float64, bool) {
		return f(p), peerCase{nodes: p.Nodes, peers: p.Peers, fault: p.Fault, open: p.Open} == c
	})
}

func lastSeconds(p PeerPull) float64     { return p.Last }
func receivedSeconds(p PeerPull) float64 { return p.Received }
func originRatio(p PeerPull) float64     { return p.OriginRatio }

// seconds returns the times until the last of some nodes had the image, without faults, behind the limited link.
func (raw peerPulls) seconds(nodes int, on bool) []float64 {
	return raw.of(peerCase{nodes: nodes, peers: on}, lastSeconds)
}

func (raw peerPulls) summary() (s report.Summary) {
	for n := 1; n <= mostPeers; n++ {
		for _, on := range []bool{false, true} {
			s = append(s, report.Value{
				Key: fmt.Sprintf("peers_%d_s_%s", n, onOff(on)), Value: median(raw.seconds(n, on)),
				Meaning: fmt.Sprintf("%d nodes at once, peers %s: last node (s)", n, onOff(on)),
			})
		}
	}
	for _, on := range []bool{false, true} {
		s = append(s, report.Value{Key: "origin_bytes_ratio_" + onOff(on),
			Value:   median(raw.of(peerCase{nodes: mostPeers, peers: on}, originRatio)),
			Meaning: fmt.Sprintf("%d nodes at once, peers %s: bytes of the registry by the image", mostPeers, onOff(on))})
	}
	s = append(s, report.Value{Key: "peers_last_ratio",
		Value:   median(raw.seconds(mostPeers, true)) / median(raw.seconds(1, false)),
		Meaning: fmt.Sprintf("last of %d nodes with peers, by one node alone without", mostPeers)})
	for _, c := range []peerCase{{nodes: 1}, {nodes: mostPeers, peers: true}} {
		s = append(s, report.Value{
			Key:     fmt.Sprintf("peers_received_%d_s_%s", c.nodes, onOff(c.peers)),
			Value:   median(raw.of(c, receivedSeconds)),
			Meaning: fmt.Sprintf("%d nodes at once, peers %s: last node has received the image (s)", c.nodes, onOff(c.peers)),
		})
	}
	s = append(s, report.Value{Key: "peers_received_ratio",
		Value: median(raw.of(peerCase{nodes: mostPeers, peers: true}, receivedSeconds)) /
			median(raw.of(peerCase{nodes: 1}, receivedSeconds)),
		Meaning: fmt.Sprintf("last of %d nodes with peers has received the image, by one alone without", mostPeers)})
	for _, n := range []int{1, mostPeers} {
		s = append(s, report.Value{Key: fmt.Sprintf("peers_%d_s_open", n),
			Value:   median(raw.of(peerCase{nodes: n, open: true}, lastSeconds)),
			Meaning: fmt.Sprintf("%d nodes at once, no peers, no limit of the link: last node (s)", n)})
	}
	for _, fault := range AllPeerFaults {
		s = append(s, report.Value{
			Key: "peers_s_" + fault, Value: median(raw.of(peerCase{mostPeers, true, fault, false}, lastSeconds)),
			Meaning: "with peers, " + faultWords[fault] + ": last node (s)",
		})
	}
	return s
}

func (raw peerPulls) table() report.Table {
	t := report.Table{Title: "Nodes that pull at once (medians)", Header: []string{"nodes", "peers", "",
		"last node (s)", "by one alone without peers", "last has received (s)", "registry sent (images)", "until (s)",
		"from peers (MB)", "CPU of containerds (s)", "of daemons (s)", "of the registry (s)",
		"nodes found to send wrong bytes"}}
	alone := median(raw.seconds(1, false))
	for _, c := range peerCases(1) {
		of := func(f func(PeerPull) float64) string { return cell(median(raw.of(c, f))) }
		last := raw.of(c, lastSeconds)
		if len(last) == 0 {
			continue
		}
		row := []string{
			fmt.Sprint(c.nodes), onOff(c.peers), c.words(), cell(median(last)), cell(median(last) / alone), "",
			fmt.Sprintf("%.3f", median(raw.of(c, originRatio))), of(func(p PeerPull) float64 { return p.OriginDone }),
			fmt.Sprintf("%.1f", median(raw.of(c, func(p PeerPull) float64 { return p.FromPeers }))/1e6), "", "", "",
			fmt.Sprint(median(raw.of(c, func(p PeerPull) float64 { return p.Banned }))),
		}
		if c.fault == "" {
			row[5] = of(receivedSeconds)
			row[9] = of(func(p PeerPull) float64 { return p.ContainerdCPU })
			row[10] = of(func(p PeerPull) float64 { return p.DaemonCPU })
			row[11] = of(func(p PeerPull) float64 { return p.RegistryCPU })
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// plot has a bar for each number of nodes without and with peers.
func (raw peerPulls) plot() *plot.Plot {
	var names []string
	longest := 1.0
	for n := 1; n <= mostPeers; n++ {
		names = append(names, fmt.Sprintf("%d at once", n))
		for _, on := range []bool{false, true} {
			for _, s := range raw.seconds(n, on) {
				longest = max(longest, s)
			}
		}
	}
	p := report.NewPlot("Nodes that pull at once, until the last has the image: without peers blue, with peers orange",
		"seconds (medians, and every sample as a dot)")
	report.XFromZero(p, 1.12*longest)
	report.NamedRows(p, names)
	for i := range mostPeers {
		for _, s := range []struct {
			on      bool
			styleOf int
		}{{false, 0}, {true, 1}} {
			times := raw.seconds(i+1, s.on)
			if len(times) == 0 {
				continue
			}
			style := styles[s.styleOf]
			y := report.RowAt(i, mostPeers) + style.at
			p.Add(report.Bar{To: report.Median(times), Y: y, Thickness: 0.34, Fill: report.Translucent(style.color, 0.75)},
				report.Dots{Samples: times, Y: y},
				label{x: report.Percentile(times, 100), y: y, text: fmt.Sprintf("%.1f s", report.Median(times))})
		}
	}
	return p
}

// peersAnswer is what the report says first.
var peersAnswer = report.Answer{
	Sentences: []string{
		"When 3 nodes pull an image at once, the last one has it after {peers_3_s_off} s if each pulls for " +
			"itself, and after {peers_3_s_on} s if they share; one node alone takes {peers_1_s_off} s.",
		"The registry sends {origin_bytes_ratio_off} times the bytes of the image without sharing, and " +
			"{origin_bytes_ratio_on} times with it.",
	},
	Quoted: []string{
		"peers_1_s_off", "peers_1_s_on", "peers_3_s_off", "peers_3_s_on", "origin_bytes_ratio_off",
		"origin_bytes_ratio_on", "peers_last_ratio", "peers_s_peer_dies", "peers_s_garbage", "peers_s_registry_gone",
	},
}
