// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/report"
)

const iostatOutput = `Linux 6.18.44 (vm) 	11/25/26 	_x86_64_	(2 CPU)

Device            r/s     rkB/s   w/s     wkB/s  w_await     f/s  aqu-sz  %util
vda              0.00      0.00  10.0    100.00     1.50    2.00    0.10   5.00


Device            r/s     rkB/s   w/s     wkB/s  w_await     f/s  aqu-sz  %util
loop0            0.00      0.00  20.0    300.00     2.50    4.00    0.20  15.00
vda              1.00      4.00  30.0    299.00     3.50    6.00    0.30  25.00
`

func TestIostatIsParsedWithTheLineOfTheMostWriting(t *testing.T) {
	p, err := parseIostat(strings.NewReader(iostatOutput))
	if err != nil {
		t.Fatal(err)
	}
	want := Row{At: 6, Device: "vda", Writes: 30, WriteKB: 299, Await: 3.5, Flushes: 6, Util: 25, ReadKB: 4, QueueLen: 0.3}
	if len(p.rows) != 3 || p.rows[2] != want {
		t.Errorf("rows %+v, want the last to be %+v", p.rows, want)
	}
	if !strings.HasPrefix(p.line, "loop0 ") || len(strings.Fields(p.line)) != len(strings.Fields(p.header)) {
		t.Errorf("line with the most writing: %q under %q", p.line, p.header)
	}
	if got := mostWriting([]Run{{Header: p.header, Line: p.line}}); got != 300 {
		t.Errorf("most writing %v, want 300", got)
	}
	if _, err := parseIostat(strings.NewReader("Device w/s\nvda 1 2\n")); err == nil {
		t.Error("a line with too many fields was accepted")
	}
}

func TestFioHistogramsOfSeveralServersAreAdded(t *testing.T) {
	const server = `{"jobname":"lab","error":0,
		"read":{"io_bytes":100,"clat_ns":{"bins":{"2000000":2,"1000000":1}}},
		"write":{"io_bytes":50,"clat_ns":{"bins":{"3000000":1}}},"sync":{"lat_ns":{"bins":{"5000000":1}}}}`
	out := "\n<first> text\n{\"client_stats\":[" + server + "," + server + `,{"jobname":"All clients","error":0}]}`
	ops, err := parseFio([]byte(out), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ops[0].Latencies)
	if !slices.Equal(ops[0].Latencies, Latencies{1, 1, 2, 2, 2, 2}) || ops[0].Bytes != 200 || ops[0].Seconds != 2 {
		t.Errorf("reads: %+v", ops[0])
	}
	if !slices.Equal(ops[2].Latencies, Latencies{5, 5}) {
		t.Errorf("fdatasync: %+v", ops[2])
	}
	for _, bad := range []string{"", "{", `{"client_stats":[]}`, `{"client_stats":[{"jobname":"lab","error":5}]}`} {
		if _, err := parseFio([]byte(bad), time.Second); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestFioRateIsSharedByItsProcesses(t *testing.T) {
	if job := (fio{}).job(2, load{rate: 2400}, time.Second); !strings.Contains(job, "rate_iops=5,5\n") ||
		!strings.Contains(job, "numjobs=2\n") {
		t.Errorf("2,400 a minute are 40 a second, of 4 processes and 2 directions:\n%s", job)
	}
	if job := (fio{}).job(1, load{}, time.Second); strings.Contains(job, "rate") {
		t.Errorf("a rate without --rate:\n%s", job)
	}
}

func TestLogOfPgbenchIsReadAndRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log.1")
	if err := os.WriteFile(file, []byte("0 1 1500 0 1700000000 1 0\n1 1 failed 0 1700000000 2 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var l Latencies
	if err := readPgLog(file, &l); err != nil || !slices.Equal(l, Latencies{1.5}) {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("the log is still there")
	}
}

const jtl = `timeStamp,elapsed,label,responseCode,responseMessage,threadName,success,failureMessage,bytes
1000,100,log in,200,OK,users 1-1,true,,1024
1500,300,log in,200,OK,users 1-2,false,"Test failed: text expected to contain /class=""logout""/",2048
2000,50,create a ticket,200,OK,users 1-1,true,,512
`

func TestSamplesOfJMeterAreReadByOperation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "samples.jtl")
	if err := os.WriteFile(file, []byte(jtl), 0o600); err != nil {
		t.Fatal(err)
	}
	ops, err := readJTL(file)
	if err != nil || len(ops) != 2 {
		t.Fatalf("%+v, %v", ops, err)
	}
	if o := ops[0]; o.Name != "log in" || !slices.Equal(o.Latencies, Latencies{100, 300}) || o.Errors != 1 ||
		len(o.Failures) != 1 || o.Bytes != 3072 || o.Seconds != 0.8 {
		t.Errorf("%+v", o)
	}
	for _, bad := range []string{"", "timeStamp,elapsed\n1,2\n", strings.Replace(jtl, "300", "x", 1)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readJTL(file); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestAggregateOfJMeterIsComparedWithOurs(t *testing.T) {
	ops := []Operation{{Name: "log in", Latencies: Latencies{100, 300, 200}, Errors: 1}}
	lines, err := parseAggregate("message\nlog in,3,200.0,200,300,100,300,0.3333333,1,2\n" +
		"TOTAL,3,200.0,200,300,100,300,0.3333333,1,2\n")
	if err != nil || len(lines) != 2 {
		t.Fatalf("%+v, %v", lines, err)
	}
	if err := checkAggregate(ops, lines); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*JMeterLine){
		func(l *JMeterLine) { l.Samples++ }, func(l *JMeterLine) { l.Mean++ }, func(l *JMeterLine) { l.P90 = 99 },
		func(l *JMeterLine) { l.Median = 301 }, func(l *JMeterLine) { l.ErrorPct = 0 }, func(l *JMeterLine) { l.Label = "x" },
	} {
		other := slices.Clone(lines)
		change(&other[0])
		if err := checkAggregate(ops, other); err == nil {
			t.Errorf("%+v was accepted", other[0])
		}
	}
	if _, err := parseAggregate("no lines\n"); err == nil {
		t.Error("no lines were accepted")
	}
}

func TestLatenciesAreOneStringInJSON(t *testing.T) {
	given := Latencies{1.5, 2, 2, 2, 0.0004, 3.25}
	text, err := json.Marshal(given)
	if err != nil || string(text) != `"1.5 2*3 0 3.25"` {
		t.Fatalf("%s, %v", text, err)
	}
	var back Latencies
	if err := json.Unmarshal(text, &back); err != nil || !slices.Equal(back, Latencies{1.5, 2, 2, 2, 0, 3.25}) {
		t.Errorf("%v, %v", back, err)
	}
	for _, bad := range []string{`"x"`, `"1*x"`, `"1*0"`, `"1*99999999999"`, `"1*-1"`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

// invented are three repetitions of some tests. A volume is always faster than the layer; tuning makes no difference.
func invented() Samples {
	raw := Samples{Cases: allCases(pgbench{})}
	for repetition := 1; repetition <= 3; repetition++ {
		for _, test := range []struct {
			key string
			ms  float64
		}{{"layer", 100}, {"volume", 10}, {"split_volume", 20}, {"tuned", 20}} {
			r := Run{Case: test.key, Repetition: repetition, Seconds: 10, Result: Result{
				Operations: []Operation{{Name: "transaction", Seconds: 10, Errors: 1}}}}
			for i := range 101 {
				r.Operations[0].Latencies = append(r.Operations[0].Latencies,
					test.ms*(0.5+float64(i)/100)+float64(repetition))
			}
			p, _ := parseIostat(strings.NewReader(iostatOutput))
			r.Iostat, r.Header, r.Line = p.rows, p.header, p.line
			raw.Runs = append(raw.Runs, r)
		}
	}
	raw.Runs = append(raw.Runs, Run{Case: "sparse", Repetition: 1, Error: "no loop device"})
	return raw
}

func TestReportSummarizesTests(t *testing.T) {
	r := newReport(pgbench{}, invented())
	for key, want := range map[string]float64{"test1_median_ms": 102, "test1_mean_ms": 102, "test3_median_ms": 12,
		"test1_error_pct": 100.0 / 101, "test1_throughput_s": 10.1, "test1_iostat_max_wkb_s": 300,
		"layer_minus_volume_ms": 90, "split_volume_minus_tuned_ms": 0} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-6 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for i := 1; i <= 5; i++ {
		for _, of := range []string{"mean_ms", "median_ms", "p90_ms", "error_pct", "throughput_s", "iostat_max_wkb_s"} {
			key := "test" + string(rune('0'+i)) + "_" + of
			if !slices.ContainsFunc(r.Summary, func(v report.Value) bool { return v.Key == key }) {
				t.Errorf("the summary has no %s", key)
			}
		}
	}
	md := string(r.Markdown())
	for _, want := range []string{"| a volume is faster than the layer ", "| no loop device |", "| 87.73 to 92.27 |"} {
		if !strings.Contains(md, want) {
			t.Errorf("no %q in:\n%s", want, md)
		}
	}
	verdicts := verdictTable(pgbench{}, invented())
	for _, row := range verdicts.Rows {
		want := map[string]string{"a volume is faster than the layer": "yes", "tuning helps": "not shown"}[row[0]]
		if row[3] != want {
			t.Errorf("%s: %s, want %s", row[0], row[3], want)
		}
	}
}

func TestSavedReportsRenderTheSame(t *testing.T) {
	for _, w := range workloads() {
		raw := invented()
		raw.Runs[0].JMeter = []JMeterLine{{Label: totalLabel, Samples: 2}, {Label: "log in", Samples: 2, Mean: 12}}
		both := []*report.Report{newReport(w, raw.without(false, true)), newDiskReport(w, raw.without(true, false))}
		for _, r := range both {
			r.Time, r.Versions, r.Params = time.Unix(1e9, 0).UTC(), map[string]string{"kernel": "6"}, map[string]any{"a": "b"}
			dir := t.TempDir()
			if err := r.Write(dir); err != nil {
				t.Fatal(err)
			}
			saved, err := report.Load(filepath.Join(dir, r.Name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			again, err := render(saved)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again.Markdown(), r.Markdown()) {
				t.Errorf("rendered again:\n%s\nwant:\n%s", again.Markdown(), r.Markdown())
			}
		}
	}
}

func TestReportWithoutSamplesIsWritten(t *testing.T) {
	for _, r := range []*report.Report{newReport(fio{}, Samples{}), newDiskReport(fio{}, Samples{})} {
		if err := r.Write(t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}

func TestImpossibleParametersAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--workload", "mongodb"}, {"--rate", "-1"}, {"--duration", "1ms"}, {"--repetitions", "0"},
		{"--tests", "layer,nonsense"}, {"--workload", "fio", "--sweep"}, {"--tests", "device"},
		{"--device", "/dev/null"}, {"--device", "/none"},
	} {
		p := &Params{}
		flags := pflag.NewFlagSet("storage", pflag.ContinueOnError)
		p.Flags(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(flags); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestManifestHasVolumeAndLimits(t *testing.T) {
	s := pgbench{}.servers(Case{Split: true, Volume: true})[1]
	text, err := manifest(Case{Volume: true, CPU: "500m", Memory: "192Mi"}, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"persistent: {}", "mountPath: /data", "cpu: 500m", "memory: 192Mi", "name: database"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if text, err := manifest(Case{}, s); err != nil || strings.Contains(string(text), "volume") {
		t.Errorf("%v: a volume although the data are in the layer:\n%s", err, text)
	}
}

func TestSweepHasEachCombinationOfTheTunedSettings(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range (Params{Tests: []string{"layer"}, Sweep: true}).cases(redmine{})[1:] {
		web := redmine{}.servers(c)[0]
		if web.env["WORKERS"] != c.Workers || web.env["POOL"] != c.Pool || web.env["DATABASE"] != "database" {
			t.Errorf("%s: %v", c.Key, web.env)
		}
		seen[c.Workers+c.Pool+c.Flush] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d combinations, want 8: %v", len(seen), seen)
	}
}

func TestPressureAndProcessorTimeAreShares(t *testing.T) {
	b := counters{at: time.Unix(100, 0), busy: 10, iowait: 5, total: 100, io: time.Second}
	var m Machine
	counters{at: time.Unix(110, 0), busy: 60, iowait: 30, total: 300, io: 6 * time.Second}.since(b, &m)
	if m.BusyPct != 25 || m.IOWaitPct != 12.5 || m.IOPressurePct != 50 {
		t.Errorf("%+v", m)
	}
	if _, err := readCounters(); err != nil {
		t.Error(err)
	}
	if d := describeDisk(); d["disk: file system"] == nil && os.Geteuid() == 0 {
		t.Errorf("the disk is not described: %v", d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := until(ctx, func() error { return os.ErrNotExist }); err == nil {
		t.Error("until ended without success or error")
	}
}
