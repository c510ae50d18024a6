// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// decode decodes JSON and refuses fields that the type does not have.
func decode(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func TestCommandsPrintTablesAndJSON(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "hello"}, service{name: "sleeper"})
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.until(t, "hello", "warm", isState("Warm"))
	// The last phases and the output of the process come a moment later.
	eventually(t, "the whole waterfall", func() bool {
		_, ok := l.wakes(t, "hello")[0].At(lifecycle.PhaseFirstByte)
		return ok
	})
	eventually(t, "the log", func() bool { return strings.Contains(l.must(t, "logs", "hello"), "server: listening on") })

	var list []status.Status
	if err := decode(l.must(t, "ps", "-o", "json"), &list); err != nil || len(list) != 2 {
		t.Errorf("ps -o json: %v: %+v", err, list)
	}
	table := l.must(t, "ps")
	for _, want := range []string{"SERVICE", "REPLICAS", "default/hello", "default/sleeper", l.address(t, "hello"), "Warm",
		"Cold"} {
		if !strings.Contains(table, want) {
			t.Errorf("ps: no %q in\n%s", want, table)
		}
	}
	for _, args := range [][]string{{"wakes", "-o", "json"}, {"wakes", "hello", "-o", "json"},
		{"wakes", "default/hello", "-o", "json"}} {
		var wakes []lifecycle.Waterfall
		if err := decode(l.must(t, args...), &wakes); err != nil || len(wakes) != 1 || len(wakes[0].Phases) < 8 {
			t.Errorf("%v: %v: %+v", args, err, wakes)
		}
	}
	if why := l.must(t, "why", "hello"); !strings.HasPrefix(why, "default/hello: Warm\n") ||
		!strings.Contains(why, "as idleTimeout is 1 h.") {
		t.Errorf("why: %s", why)
	}
	var top struct {
		Time     time.Time          `json:"time"`
		Services []view.ServiceLoad `json:"services"`
	}
	if err := decode(l.must(t, "top", "--count", "1", "--sort", "name", "-o", "json"), &top); err != nil ||
		len(top.Services) != 2 || top.Services[0].Name != "default/hello" || len(top.Services[0].Pods) != 1 {
		t.Errorf("top -o json: %v: %+v", err, top)
	}
	if text := l.must(t, "top", "hello", "--count", "1"); !strings.Contains(text, "NEW/S") ||
		strings.Contains(text, "sleeper") {
		t.Errorf("top hello:\n%s", text)
	}
	drawn := l.must(t, "wakes", "hello")
	for _, phase := range []lifecycle.PhaseName{lifecycle.PhaseSYNSeen, lifecycle.PhaseCreated, lifecycle.PhaseListening,
		lifecycle.PhaseReleased} {
		if !strings.Contains(drawn, string(phase)) {
			t.Errorf("wakes: no %q in\n%s", phase, drawn)
		}
	}
	if out := l.must(t, "logs", "hello", "--tail", "1"); strings.Count(out, "\n") != 1 {
		t.Errorf("logs --tail 1: %q", out)
	}
	if out := l.must(t, "logs", "sleeper"); strings.Contains(out, "listening") {
		t.Errorf("logs of a service that never ran: %q", out)
	}
	var images []struct{ Name string }
	if err := json.Unmarshal([]byte(l.must(t, "image", "ls", "-o", "json", "--state-dir", l.state, "--containerd", "own")),
		&images); err != nil || len(images) == 0 {
		t.Errorf("image ls -o json: %v: %+v", err, images)
	}
	// Names are completed as users type them.
	for line, want := range map[string]string{
		"logs he": "hello", "top hello ": "sleeper", "why default/": "default/hello", "image rm ": serverTag,
		"image pull ": "hello",
	} {
		words := append([]string{program, "__completeNoDesc", "--run-dir", l.run}, strings.Split(line, " ")...)
		out, err := l.Node.Command(t.Context(), words...).Output()
		if names := strings.Split(string(out), "\n"); err != nil || !slices.Contains(names, want) ||
			slices.Contains(names[1:], names[0]) || line == "top hello " && slices.Contains(names, "hello") {
			t.Errorf("completion of %q: %q, %v, want %s", line, names, err, want)
		}
	}
	l.must(t, "sleep", "hello")
	if s := l.service(t, "hello").Service.Status; s.Replicas != 0 {
		t.Errorf("after sleep: %+v", s)
	}
	for _, args := range [][]string{{"sleep", "nobody"}, {"logs", "nobody"}, {"wakes", "nobody"}, {"why", "nobody"},
		{"top", "nobody", "--count", "1"}, {"wake", "nobody"}, {"restart", "nobody"}, {"stats", "nobody"}} {
		if _, err := l.wangell(args...); err == nil || !strings.Contains(err.Error(), `service "nobody": not found`) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestCommandsWithoutAnInstanceSayHowToStartOne(t *testing.T) {
	l := newLab(t, 1)
	for _, args := range [][]string{{"ps"}, {"wakes"}, {"why", "hello"}, {"logs", "hello"}, {"sleep", "hello"}} {
		if _, err := l.wangell(args...); err == nil || !strings.Contains(err.Error(), "wangell up") ||
			!strings.Contains(err.Error(), l.run) {
			t.Errorf("%v without an instance: %v", args, err)
		}
	}
	var version map[string]any
	if err := json.Unmarshal([]byte(l.must(t, "version", "-o", "json")), &version); err != nil ||
		version["version"] == "" {
		t.Errorf("version -o json: %v: %v", err, version)
	}
	var checks []map[string]any
	out, err := l.wangell("doctor", "-o", "json")
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("doctor: %v", err)
	}
	if err := json.Unmarshal([]byte(out), &checks); err != nil || len(checks) < 5 {
		t.Errorf("doctor -o json: %v: %s", err, out)
	}
}

func TestLogsAreFollowedAcrossWakes(t *testing.T) {
	l := newLab(t, 1) // the name of the service is unique, as logs stay
	l.start(t, service{name: "follow"})
	e2e.MustAsk(t, l.Client(), l.address(t, "follow"))
	cmd := l.Node.Command(t.Context(), program, "logs", "follow", "-f", "--run-dir", l.run)
	var out syncbuf.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	listening := func() int { return strings.Count(out.String(), "listening on") }
	eventually(t, "the first pod's line", func() bool { return listening() == 1 })
	l.sleep(t, "follow")
	e2e.MustAsk(t, l.Client(), l.address(t, "follow"))
	eventually(t, "the second pod's line", func() bool {
		return listening() == 2 &&
			strings.Contains(out.String(), "asked to stop")
	})
}

// Each line of standard output is an event, and each line of the log is JSON with --log-format json.
func TestEventsAndLogAreJSONLines(t *testing.T) {
	l := newLab(t, 1)
	u := l.startWith(t, manifest(service{name: "hello"}), "-f", "-", "--log-format", "json")
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.until(t, "hello", "warm", isState("Warm"))
	if err := u.stop(); err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, e := range u.events {
		switch e.Kind {
		case status.EventState:
			states = append(states, e.State)
		case status.EventReport, status.EventPull, status.EventDaemon, "ready":
		default:
			t.Errorf("event %+v", e)
		}
	}
	if got := strings.Join(states, " "); !strings.HasPrefix(got, "Waking Warm Stopping") {
		t.Errorf("states: %s", got)
	}
	for line := range strings.Lines(u.log.String()) {
		var record struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Msg == "" {
			t.Errorf("log: %q: %v", line, err)
		}
	}
}

// One address serves the metrics of the controller and of the daemon.
func TestMetricsFollowTheConventionsOfPrometheus(t *testing.T) {
	const address = "127.0.0.1:9464"
	l := newLab(t, 1)
	l.startWith(t, manifest(service{name: "hello"}, service{name: "sleeper"}), "-f", "-", "--metrics-address", address)
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.until(t, "hello", "all flows counted", func(s status.Status) bool { return s.Traffic.NewFlows == 1 })
	text, err := e2e.Get(l.Node, address, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"wangell_wake_phase_seconds", "wangell_wake_seconds", "wangell_wakes_total", "wangell_services", "wangell_pods",
		"wangell_daemons",
		"wangell_service_open_flows", "wangell_service_flows_total", "wangell_service_bytes_total",
		"wangell_service_latest_request_timestamp_seconds", "wangell_service_wake_seconds",
		"wangell_service_asleep_seconds_total",
		"wangell_wire_dropped_datagrams_total", "wangell_gate_parked_syns_total", "wangell_gate_released_syns_total",
		"wangell_gate_refused_syns_total",
		"wangell_gate_packets_total", "wangell_gate_bytes_total", "wangell_gate_open_flows",
		"wangell_gate_special_packets_total",
		"process_resident_memory_bytes", "wangell_daemon_process_resident_memory_bytes",
	} {
		if families[name] == nil {
			t.Errorf("no metric %s", name)
		}
	}
	for _, want := range []string{
		`wangell_services{state="Cold"} 1`, `wangell_services{state="Warm"} 1`, `wangell_wakes_total{result="warm"} 1`,
		"wangell_daemons 1",
		`wangell_service_flows_total{namespace="default",service="hello"} 1`,
		fmt.Sprintf(`wangell_gate_released_syns_total{address="%s",namespace="default",port="80",service="hello"} 1`,
			l.address(t, "hello")),
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("no %s in the metrics:\n%s", want, grep(string(text), strings.SplitN(want, "{", 2)[0]))
		}
	}
	if strings.Contains(string(text), "sleeper") {
		t.Errorf("a service that was never used has metrics:\n%s", grep(string(text), "sleeper"))
	}
	if body, err := e2e.Get(l.Node, address, "/readyz"); err != nil || string(body) != "ready\n" {
		t.Errorf("/readyz: %q, %v", body, err)
	}
}
