// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func balanceReport(cfg BalanceConfig, samples []BalanceSample) *Report {
	var s Summary
	for _, p := range BalancePatterns {
		for _, b := range samples {
			if b.Pattern == p.Key {
				s = append(s, Value{p.Key + "_busiest_over_mean_" + b.Mode, busiest(b.Requests), p.Name + ", " + b.Mode + ": requests of the busiest pod over the mean"})
			}
		}
		for _, b := range samples {
			if b.Pattern == p.Key {
				s = append(s, Value{p.Key + "_req_per_s_" + b.Mode, b.perSecond(), p.Name + ", " + b.Mode + ": requests in a second"})
			}
		}
	}
	for _, mode := range cfg.Modes {
		failed := 0
		for _, b := range samples {
			if b.Mode == mode {
				failed += b.Failed
			}
		}
		s = append(s, Value{"failed_requests_" + mode, float64(failed), mode + ": failed requests"})
	}
	return &Report{
		Name: "balance", Title: "Balancing: which pods get the requests", Time: time.Now(), Raw: samples, Summary: s,
		How: fmt.Sprintf("A service of %d pods on a cluster of several nodes on one machine, once behind kube-proxy in nftables mode (ClusterIP) and once behind Wangell (its service address). "+
			"The pods' answers tell which pod they are from. Clients are Go programs' net/http in the network namespace of a pod of the first node, and make one request after the other in each thread. "+
			"A pool is that of net/http: a request takes the connection that was given back last, or makes a new one if none is free. "+
			"Both balance connections, not requests: what goes over one connection goes to one pod, whatever the balancing, so with few connections the busiest pod is far above the mean, "+
			"and a pool of which some connections are used more than others is uneven even where its connections are spread evenly. "+
			"Least open flows counts the flows that are open when a new one comes: connections that follow each other are spread in turn. Client and pods share the machine's cores.", balancePods),
		Tables: []Table{balanceTable(samples)}, Figure: balanceFigure(cfg, samples),
	}
}

func balanceTable(samples []BalanceSample) Table {
	t := Table{Title: "By pattern", Header: []string{"pattern", "mode", "requests by pod, %", "busiest over mean", "connections by pod", "requests per second", "failed"}}
	for _, p := range BalancePatterns {
		for _, s := range samples {
			if s.Pattern != p.Key {
				continue
			}
			var shares, connections []string
			total := max(1, s.perSecond()*s.Seconds)
			for _, n := range sorted(s.Requests) {
				shares = append(shares, strconv.FormatFloat(100*float64(n)/total, 'f', 1, 64))
			}
			for _, n := range sorted(s.Connections) {
				connections = append(connections, strconv.Itoa(n))
			}
			t.Rows = append(t.Rows, []string{p.Name, s.Mode, strings.Join(shares, " "), decimal(busiest(s.Requests)), strings.Join(connections, " "), whole(s.perSecond()), strconv.Itoa(s.Failed)})
		}
	}
	return t
}

// balanceFigure draws the share of each pod, a row for each pattern and mode.
func balanceFigure(cfg BalanceConfig, samples []BalanceSample) Figure {
	return func(c draw.Canvas) error {
		p := newPlot("Share of each pod in the requests; the line is an even share", "%")
		names := make([]string, len(BalancePatterns))
		for i, pattern := range BalancePatterns {
			names[i] = pattern.Name
		}
		rows(p, names)
		milliseconds(p, 100)
		for _, s := range samples {
			i := slices.IndexFunc(BalancePatterns, func(p BalancePattern) bool { return p.Key == s.Pattern })
			j := slices.Index(cfg.Modes, s.Mode)
			y := rowAt(i, len(names)) + 0.4*(float64(len(cfg.Modes)-1)/2-float64(j))
			total, at := max(1, s.perSecond()*s.Seconds), 0.0
			for k, n := range sorted(s.Requests) {
				share := 100 * float64(n) / total
				if share > 0 {
					p.Add(bar{from: at, to: at + share, y: y, thickness: 0.34, fill: shade(modeColor(s.Mode), k)})
				}
				at += share
			}
			p.Add(bar{from: at, to: at, y: y, fill: color.Transparent, text: fmt.Sprintf("%.0f per second", s.perSecond())})
		}
		for k := 1; k < balancePods; k++ {
			p.Add(evenLine(100 * float64(k) / balancePods))
		}
		legend(p, cfg.Modes)
		p.X.Max = 122  // room for text
		p.Y.Max += 0.5 // and for the legend
		p.Draw(c)
		return nil
	}
}

// shade makes the k-th of neighbouring pieces of a colour differ from the next.
func shade(c color.RGBA, k int) color.Color { return translucent(c, []float64{1, 0.62}[k%2]) }

// evenLine is a vertical dashed line.
type evenLine float64

// Plot implements plot.Plotter.
func (e evenLine) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	c.StrokeLine2(draw.LineStyle{Color: ink, Width: 0.8, Dashes: []vg.Length{3, 3}}, x(float64(e)), c.Min.Y, x(float64(e)), c.Max.Y)
}
