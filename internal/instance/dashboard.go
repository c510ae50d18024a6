// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"

	"wangell.loutres.me/internal/buildinfo"
	"wangell.loutres.me/internal/dashboard"
)

// newDashboard makes the dashboard of this node, which reads the state of the gate from the daemon's metrics.
func (u *up) newDashboard(node string) {
	daemon := daemonGatherer(u.daemonSocket())
	u.dashboard = dashboard.New(dashboard.Config{
		Source: u.controller, Version: buildinfo.Version,
		Gates: func(context.Context) ([]dashboard.Gate, error) {
			if !u.daemon.started() {
				return []dashboard.Gate{}, nil
			}
			families, err := daemon.Gather()
			if err != nil {
				return nil, err
			}
			return []dashboard.Gate{gateOf(node, families)}, nil
		},
		Connections: func(ctx context.Context) (dashboard.Connections, error) {
			if !u.daemon.started() {
				return dashboard.Connections{Most: []dashboard.ConnectionsOf{}}, nil
			}
			return fetchConnections(ctx, daemonClient(u.daemonSocket()))
		},
	})
	u.stopParts = append(u.stopParts, func() error { u.dashboard.Close(); return nil })
}

// fetchConnections asks the daemon who is connected to what.
func fetchConnections(ctx context.Context, daemon *http.Client) (out dashboard.Connections, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/connections", nil)
	if err != nil {
		return out, err
	}
	response, err := daemon.Do(request)
	if err != nil {
		return out, fmt.Errorf("connections: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return out, fmt.Errorf("connections: the daemon answers %s", response.Status)
	}
	return out, json.NewDecoder(response.Body).Decode(&out)
}

// serveUI serves the dashboard, if there is an address for it.
func (u *up) serveUI() {
	if u.ui == nil {
		return
	}
	guard := dashboard.NewGuard(u.dashboard.Handler(u.UIActions), u.ui.Addr())
	server := dashboard.NewServer(guard, u.Log)
	u.stopParts = append(u.stopParts, server.Close)
	u.parts.Go(func() {
		if err := server.Serve(u.ui); !errors.Is(err, http.ErrServerClosed) {
			u.Log.Error("the dashboard is no longer served", "error", err)
		}
	})
	if !dashboard.Loopback(u.ui.Addr()) {
		u.Log.Warn(fmt.Sprintf("other machines reach the dashboard at %s, and its token is not encrypted on the way: "+
			"a loopback address with 'ssh -L' is safer", u.ui.Addr()))
	}
	u.Log.Info("the dashboard is at " + guard.URL())
}

// gateOf reads the state of a gate from the metrics of its daemon.
func gateOf(node string, families []*dto.MetricFamily) dashboard.Gate {
	g := dashboard.Gate{
		Node: node, Tables: []dashboard.Table{}, Counters: map[string]uint64{}, Interfaces: map[string]string{},
	}
	tables := map[string]int{}
	table := func(name string) *dashboard.Table {
		i, known := tables[name]
		if !known {
			i = len(g.Tables)
			tables[name] = i
			g.Tables = append(g.Tables, dashboard.Table{Name: name})
		}
		return &g.Tables[i]
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "wangell_gate_table_entries":
				table(labelOf(m, "table")).Used = uint64(m.GetGauge().GetValue())
			case "wangell_gate_table_size":
				table(labelOf(m, "table")).Size = uint64(m.GetGauge().GetValue())
			case "wangell_gate_special_packets_total":
				g.Counters[labelOf(m, "kind")] = uint64(m.GetCounter().GetValue())
			case "wangell_gate_interface_info":
				g.Interfaces[labelOf(m, "interface")] = labelOf(m, "xdp")
			case "wangell_gate_parked_syns":
				g.Parked += uint64(m.GetGauge().GetValue())
			}
		}
	}
	return g
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
