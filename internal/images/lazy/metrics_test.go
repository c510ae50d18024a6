// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// checkMetrics checks the metrics after two layers have come in full, of which a registry has sent some bytes.
func checkMetrics(t *testing.T, s *Server, sent int64) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(s)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, received, waits := map[string]float64{}, map[string]float64{}, uint64(0)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			waits += m.GetHistogram().GetSampleCount()
			for _, l := range m.GetLabel() {
				received[l.GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	for name, want := range map[string]float64{"layers": 2, "missing_bytes": 0, "complete_layers_total": 2,
		"failures_total": 0} {
		if v, ok := got[metricsPrefix+name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	total := received["read"] + received["background"]
	if received["read"] == 0 || received["background"] == 0 || total > float64(sent) || total < 0.9*float64(sent) {
		t.Errorf("received %v, and the registry has sent %d bytes", received, sent)
	}
	if waits == 0 {
		t.Error("no read has waited")
	}
}
