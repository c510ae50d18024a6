// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Where operators look alerts and metrics up.
const (
	alertsPage  = "../docs/operations/alerts.md"
	metricsPage = "../docs/operations/metrics.md"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryAlertHasARunbook(t *testing.T) {
	var alerts alertGroups
	if err := yaml.Unmarshal([]byte(read(t, "chart/files/alerts.yaml")), &alerts); err != nil {
		t.Fatal(err)
	}
	runbooks := regexp.MustCompile(`(?m)^## (Wangell\w+)$`).FindAllStringSubmatch(read(t, alertsPage), -1)
	var described, defined []string
	for _, r := range runbooks {
		described = append(described, r[1])
	}
	for _, r := range alerts.Groups[0].Rules {
		defined = append(defined, r.Alert)
		if want := "docs/operations/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if r.Annotations["summary"] == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s has no summary or severity", r.Alert)
		}
	}
	if !slices.Equal(described, defined) {
		t.Errorf("%s describes %q, the alerts are %q", alertsPage, described, defined)
	}
}

func TestMonitoringCanBeRead(t *testing.T) {
	r := render(t, everything...)
	if len(r.alerts) == 0 || !strings.HasPrefix(r.alerts[0].Annotations["runbook_url"], "https://wiki.example/operations#") {
		t.Errorf("alerts %+v, want them with the URL of the runbooks", r.alerts)
	}
	for _, m := range r.monitors {
		if !m.Spec.Endpoints[0].Honor {
			t.Errorf("PodMonitor %s replaces the labels namespace and service of the metrics", m.Name)
		}
	}
	if len(r.dashboards) != 1 {
		t.Fatalf("%d ConfigMaps with a dashboard, want 1", len(r.dashboards))
	}
	d, text := r.dashboards[0], r.dashboards[0].Data["wangell.json"]
	if d.Labels["grafana_dashboard"] != "1" || d.Annotations["folder"] != "x" || !json.Valid([]byte(text)) {
		t.Errorf("dashboard with the labels %v, the annotations %v and the text\n%s", d.Labels, d.Annotations, text)
	}
}

// Metrics in dashboard and alerts stand in the documentation, without which nobody knows what they mean.
func TestMetricsOfDashboardAndAlertsAreDocumented(t *testing.T) {
	text := read(t, metricsPage)
	for _, file := range []string{"chart/files/alerts.yaml", "chart/files/dashboard.json"} {
		for _, name := range regexp.MustCompile(`\bwangell_[a-z_]+`).FindAllString(read(t, file), -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			short := strings.TrimPrefix(name, "wangell_")
			if !strings.Contains(text, "`"+short+"`") && !strings.Contains(text, "`"+short+"{") &&
				!strings.HasPrefix(short, "daemon_process_") {
				t.Errorf("%s: %s is not in %s", file, name, metricsPage)
			}
		}
	}
}
