// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// charts has the dashboard and the alerts, as they are installed.
const charts = "../../deploy/chart/files"

// prometheusTools unpacks the programs of Debian's package prometheus into a folder, once. The package itself is not
// installed, as that would start a server on the machine.
func prometheusTools(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(folder, "prometheus")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // packages are downloaded
	defer cancel()
	built, err := debimage.Build(ctx, debimage.Recipe{
		Name: "prometheus", Packages: []string{"prometheus"}, Without: []string{"lib*", "fonts-*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(built.Image)
	defer files.Close()
	for archive := tar.NewReader(files); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if name := path.Base(h.Name); h.Typeflag == tar.TypeReg && (name == "prometheus" || name == "promtool") &&
			path.Base(path.Dir(h.Name)) == "bin" {
			text, err := io.ReadAll(archive)
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o700)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// Prometheus itself tests when each alert fires, and when not: testdata/alerts_test.yaml.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	rules, err := filepath.Abs(filepath.Join(charts, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "alerts_test.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(cases), "alerts.yaml", rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(prometheusTools(t), "promtool"), "test", "rules",
		file).CombinedOutput()
	if err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, name, ok := strings.Cut(line, "- alert: "); ok &&
			!strings.Contains(string(cases), "alertname: "+strings.TrimSpace(name)+"\n") {
			t.Errorf("no test of the alert %s", strings.TrimSpace(name))
		}
	}
}

// panel is a panel of the dashboard, or a row.
type panel struct {
	Title   string `json:"title"`
	Type    string `json:"type"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// panels returns the panels that one machine has data for.
func panels(t *testing.T) (found []panel) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(charts, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if p.Type == "row" && p.Title == "Images (Kubernetes)" {
			break
		}
		if p.Type != "row" {
			found = append(found, p)
		}
	}
	return found
}

// prometheus is a server on the node that reads the metrics of an instance each second.
type prometheus struct {
	lab *lab
	out *syncbuf.Buffer
}

func (l *lab) prometheus(t *testing.T, metrics string) *prometheus {
	t.Helper()
	tools := prometheusTools(t)
	rules, err := filepath.Abs(filepath.Join(charts, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: wangell
    honor_labels: true
    static_configs: [{targets: [%q]}]
`, rules, metrics)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{lab: l, out: &syncbuf.Buffer{}}
	cmd := l.Node.Command(context.Background(), filepath.Join(tools, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:9090", "--enable-feature=native-histograms")
	cmd.Stdout, cmd.Stderr = p.out, p.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// query returns how many series an expression has now.
func (p *prometheus) query(expr string) (int, error) {
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return 0, err
	}
	n := 0
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

func (p *prometheus) get(path string, answer any) error {
	body, err := e2e.Get(p.lab.Node, "127.0.0.1:9090", path)
	if err != nil {
		return fmt.Errorf("prometheus: %w; it wrote:\n%s", err, p.out)
	}
	return json.Unmarshal(body, answer)
}

// Every query of the dashboard has data while services wake, serve and sleep, and the alerts are evaluated.
func TestDashboardHasDataInPrometheus(t *testing.T) {
	const metrics = "127.0.0.1:9464"
	l := newLab(t, 1)
	l.startWith(t, manifest(service{name: "hello", more: "resources: {requests: {cpu: 100m, memory: 64Mi}}"}), "-f", "-",
		"--metrics-address", metrics)
	address := l.address(t, "hello")
	p := l.prometheus(t, metrics)
	missing := map[string]string{} // titles by query
	for _, panel := range panels(t) {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "10s", "$namespace", ".*", "$service", ".*").Replace(target.Expr)
			missing[query] = panel.Title
		}
	}
	queries := len(missing)
	e2e.Eventually(t, fmt.Sprintf("all of %d queries have had data", queries), func() (bool, string) {
		e2e.MustAsk(t, l.Client(), address)
		if conn, err := l.Client().Dialer().Dial("tcp4", strings.TrimSuffix(address, ":80")+":81"); err == nil {
			conn.Close()
			t.Fatal("a port without a service accepts connections")
		}
		l.sleep(t, "hello")
		var saw strings.Builder
		for query, title := range missing {
			switch n, err := p.query(query); {
			case err != nil:
				return false, err.Error()
			case n > 0:
				delete(missing, query)
			default:
				fmt.Fprintf(&saw, "%s: nothing for %s\n", title, query)
			}
		}
		return len(missing) == 0, saw.String()
	})
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Name   string `json:"name"`
					Health string `json:"health"`
					Error  string `json:"lastError"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"data"`
	}
	if err := p.get("/api/v1/rules", &rules); err != nil || len(rules.Data.Groups) != 1 {
		t.Fatalf("%d groups of rules, %v, want 1", len(rules.Data.Groups), err)
	}
	for _, r := range rules.Data.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("alert %s: %s %s", r.Name, r.Health, r.Error)
		}
	}
}
