// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/gate"
)

// collector gives the gate's counters to Prometheus. Services that never saw a SYN are left out, so ten
// thousand sleeping services do not make ten thousand series.
type collector struct {
	d       *daemon
	packets *prometheus.Desc
	service map[string]*prometheus.Desc
	parked  *prometheus.Desc
	open    *prometheus.Desc
	flows   *prometheus.Desc
	bytes   *prometheus.Desc
	passed  *prometheus.Desc
}

func newCollector(d *daemon) *collector {
	byService := []string{"service", "address"}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("wangell_gate_"+name, help, labels, nil)
	}
	return &collector{
		d:       d,
		packets: desc("special_packets_total", "Packets for service addresses that were not simply carried, by what they were.", "kind"),
		service: map[string]*prometheus.Desc{
			"wakes":      desc("wakes_total", "Wake events of a cold service.", byService...),
			"parked":     desc("parked_syns_total", "SYNs parked.", byService...),
			"duplicates": desc("parked_duplicates_total", "Retransmissions of parked SYNs.", byService...),
			"overflows":  desc("parked_overflows_total", "SYNs dropped because a service or source had too many parked.", byService...),
			"refused":    desc("refused_syns_total", "Parked SYNs answered with RST.", byService...),
			"released":   desc("released_syns_total", "Parked SYNs released to a pod.", byService...),
		},
		parked: desc("parked_syns", "SYNs parked at present.", byService...),
		open:   desc("open_flows", "Established connections at present.", byService...),
		flows:  desc("flows_total", "Connections established with the present pods.", byService...),
		bytes:  desc("bytes_total", "IP bytes carried to (in) and from (out) the present pods.", append(byService, "direction")...),
		passed: desc("packets_total", "Packets carried to (in) and from (out) the present pods.", append(byService, "direction")...),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.parked, c.open, c.flows, c.bytes, c.passed} {
		ch <- d
	}
	for _, d := range c.service {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counters, err := c.d.gate.Counters()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.packets, err)
	}
	for name, n := range counters {
		ch <- prometheus.MustNewConstMetric(c.packets, prometheus.CounterValue, float64(n), name)
	}
	for _, s := range c.d.all() {
		c.collectService(ch, s)
	}
}

func (c *collector) collectService(ch chan<- prometheus.Metric, s *service) {
	n := c.d.gate.ServiceCounters(s.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	home := false
	for _, pod := range s.pods {
		home = home || pod.home
	}
	if n == (gate.ServiceCounters{}) && !home {
		return // nothing has happened here
	}
	addr := s.addr.String()
	for name, v := range map[string]uint64{
		"wakes": n.Wakes, "parked": n.Parked, "duplicates": n.Duplicates,
		"overflows": n.Overflows, "refused": n.Refused, "released": n.Released,
	} {
		ch <- prometheus.MustNewConstMetric(c.service[name], prometheus.CounterValue, float64(v), s.name, addr)
	}
	ch <- prometheus.MustNewConstMetric(c.parked, prometheus.GaugeValue, float64(n.ParkedNow), s.name, addr)
	var sum gate.PodCounters
	for id, pod := range s.pods {
		if !pod.home {
			continue // its home node counts
		}
		p, err := c.d.gate.PodCounters(s.addr, id)
		if err != nil {
			continue // it went away just now
		}
		sum.Open += p.Open
		sum.NewFlows += p.NewFlows
		sum.BytesIn += p.BytesIn
		sum.BytesOut += p.BytesOut
		sum.PacketsIn += p.PacketsIn
		sum.PacketsOut += p.PacketsOut
	}
	ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(sum.Open), s.name, addr)
	ch <- prometheus.MustNewConstMetric(c.flows, prometheus.CounterValue, float64(sum.NewFlows), s.name, addr)
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(sum.BytesIn), s.name, addr, "in")
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(sum.BytesOut), s.name, addr, "out")
	ch <- prometheus.MustNewConstMetric(c.passed, prometheus.CounterValue, float64(sum.PacketsIn), s.name, addr, "in")
	ch <- prometheus.MustNewConstMetric(c.passed, prometheus.CounterValue, float64(sum.PacketsOut), s.name, addr, "out")
}
