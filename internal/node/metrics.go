// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// collector exports the gate's counters to Prometheus. Services without any SYN are left out, so that ten thousand
// sleeping services do not cause ten thousand series.
type collector struct {
	d        *daemon
	packets  *prometheus.Desc
	service  map[string]*prometheus.Desc
	parked   *prometheus.Desc
	open     *prometheus.Desc
	flows    *prometheus.Desc
	bytes    *prometheus.Desc
	passed   *prometheus.Desc
	again    *prometheus.Desc
	restored *prometheus.Desc
	nics     *prometheus.Desc
	used     *prometheus.Desc
	sizes    *prometheus.Desc
	scarce   *prometheus.Desc
	visits   *prometheus.Desc
}

func newCollector(d *daemon) *collector {
	// A service with several ports has a series for each.
	byService := []string{"namespace", "service", "address", "port"}
	byDirection := append(byService, "direction")
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("wangell_gate_"+name, help, labels, nil)
	}
	return &collector{
		d: d,
		packets: desc("special_packets_total",
			"Packets for service addresses that were not simply forwarded, by kind.", "kind"),
		service: map[string]*prometheus.Desc{
			"wakes":      desc("wakes_total", "Wake events of cold services.", byService...),
			"parked":     desc("parked_syns_total", "SYNs parked.", byService...),
			"duplicates": desc("parked_duplicates_total", "Retransmissions of parked SYNs.", byService...),
			"overflows": desc("parked_overflows_total",
				"SYNs dropped because too many of the service or source were parked.", byService...),
			"refused": desc("refused_syns_total", "Parked SYNs answered with RST.", byService...),
			"denied": desc("denied_syns_total",
				"SYNs dropped because their source may not connect to the service.", byService...),
			"released": desc("released_syns_total", "Parked SYNs released to a pod.", byService...),
		},
		parked: desc("parked_syns", "SYNs parked now.", byService...),
		open:   desc("open_flows", "Connections established now.", byService...),
		flows:  desc("flows_total", "Connections established with the current pods.", byService...),
		bytes:  desc("bytes_total", "IP bytes forwarded to (in) and from (out) the current pods.", byDirection...),
		used:   desc("table_entries", "Entries in a table of the gate, or in the largest share of the flow table.", "table"),
		sizes:  desc("table_size", "Entries for which the table or share has room.", "table"),
		scarce: desc("scarce", "Budgets of wakes, one for each service, and tables that clients exceed or almost fill, "+
			"now or in the last minute.", "what"),
		visits: prometheus.NewDesc("wangell_visits_total", "How often frozen pods were thawed for a probe, a command or "+
			"another visitor that does not use their service, and frozen again.", nil, nil),
		again: desc("reattached_total",
			"How often the gate's programs had to be attached again, because others came first or detached them."),
		restored: desc("restored_total",
			"How often the gate has put back what somebody else had removed or changed.", "kind"),
		nics: desc("interface_info", "1 for each external interface, with its XDP mode.",
			"interface", "xdp", "reason"),
		passed: desc("packets_total", "Packets forwarded to (in) and from (out) the current pods.", byDirection...),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.parked, c.open, c.flows, c.bytes, c.passed,
		c.again, c.restored, c.nics, c.used, c.sizes, c.scarce, c.visits} {
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
	for _, f := range c.d.fills() {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(f.Used), f.Table)
		ch <- prometheus.MustNewConstMetric(c.sizes, prometheus.GaugeValue, float64(f.Size), f.Table)
	}
	scarce := c.d.alerts.counts()
	for _, k := range wire.AlertKinds() {
		ch <- prometheus.MustNewConstMetric(c.scarce, prometheus.GaugeValue, float64(scarce[k]), k.String())
	}
	ch <- prometheus.MustNewConstMetric(c.visits, prometheus.CounterValue, float64(c.d.visited.Load()))
	ch <- prometheus.MustNewConstMetric(c.again, prometheus.CounterValue, float64(c.d.gate.Reattached()))
	for kind, n := range c.d.gate.Restored() {
		ch <- prometheus.MustNewConstMetric(c.restored, prometheus.CounterValue, float64(n), kind)
	}
	for name, xdp := range c.d.gate.Attached() {
		ch <- prometheus.MustNewConstMetric(c.nics, prometheus.GaugeValue, 1, name, string(xdp.Mode), xdp.Why)
	}
	for _, s := range c.d.allServices() {
		c.collectService(ch, s)
	}
}

// collectService exports the metrics of one service.
func (c *collector) collectService(ch chan<- prometheus.Metric, s *service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := c.d.gate.ServiceCounters(s.addr)
	home := false
	for _, pod := range s.pods {
		home = home || pod.home
	}
	if n == (gate.ServiceCounters{}) && !home {
		return // no packet for it came to this node
	}
	namespace, service, _ := strings.Cut(s.name, "/")
	export := func(d *prometheus.Desc, kind prometheus.ValueType, v uint64, more ...string) {
		labels := append([]string{namespace, service, s.addr.String(), strconv.Itoa(int(s.addr.Port()))}, more...)
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	for name, v := range map[string]uint64{
		"wakes": n.Wakes, "parked": n.Parked, "duplicates": n.Duplicates,
		"overflows": n.Overflows, "refused": n.Refused, "released": n.Released,
		"denied": n.Denied,
	} {
		export(c.service[name], prometheus.CounterValue, v)
	}
	export(c.parked, prometheus.GaugeValue, uint64(n.ParkedNow))
	var sum gate.PodCounters
	for id, pod := range s.pods {
		if !pod.home {
			continue // its home node counts its flows
		}
		p, err := c.d.gate.PodCounters(s.addr, id)
		if err != nil {
			continue // it was removed just now
		}
		sum.Add(p)
	}
	export(c.open, prometheus.GaugeValue, uint64(sum.Open))
	export(c.flows, prometheus.CounterValue, sum.NewFlows)
	export(c.bytes, prometheus.CounterValue, sum.BytesIn, "in")
	export(c.bytes, prometheus.CounterValue, sum.BytesOut, "out")
	export(c.passed, prometheus.CounterValue, sum.PacketsIn, "in")
	export(c.passed, prometheus.CounterValue, sum.PacketsOut, "out")
}
