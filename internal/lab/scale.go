// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/internal/image"
)

// ScaleConfig configures Scale.
type ScaleConfig struct {
	// Wangell is the program to measure. Default: this one.
	Wangell string
	// Services is the largest number of sleeping services, 1-16000. Default: 10,000, or 200 if Quick.
	Services int
	// Idle is how long the use of the processor is measured. Default: 30 s, or 2 s if Quick.
	Idle time.Duration
	// Quick makes it small: to see that it works, not to trust the numbers.
	Quick bool
	// Progress is called after every size; it may be nil.
	Progress func(done, total int)
}

// ScaleSample is what an instance with so many sleeping services costs.
type ScaleSample struct {
	Services int `json:"services"`
	// Start is how long `wangell up` took until every service could be woken, in seconds.
	Start float64 `json:"start_s"`
	// Daemon and Controller are what their processes use.
	Daemon     ProcessUse `json:"daemon"`
	Controller ProcessUse `json:"controller"`
	// Cold is one cold request to the last service, connect() to first byte, in milliseconds.
	Cold float64 `json:"cold_ms"`
}

// ProcessUse is what a process uses while all services sleep.
type ProcessUse struct {
	// Resident is its resident memory in MiB, Anonymous what of it is its own and not of files.
	Resident  float64 `json:"resident_mib"`
	Anonymous float64 `json:"anonymous_mib"`
	// CPU is its share of one core in percent.
	CPU float64 `json:"cpu_percent"`
}

// scaleServices is the range of service addresses: room for 16,382.
var scaleServices = netip.MustParsePrefix("10.46.64.0/18")

func (c ScaleConfig) withDefaults() (ScaleConfig, error) {
	if c.Services < 0 || c.Services > 16000 {
		return c, fmt.Errorf("lab scale: %d services: want 1 to 16000", c.Services)
	}
	def := func(full, quick int) int {
		if c.Quick {
			return quick
		}
		return full
	}
	if c.Services == 0 {
		c.Services = def(10000, 200)
	}
	if c.Idle == 0 {
		c.Idle = time.Duration(def(30, 2)) * time.Second
	}
	if c.Wangell == "" {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("lab scale: find this program: %w", err)
		}
		c.Wangell = self
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	return c, nil
}

// sizes are the numbers of services that are measured.
func (c ScaleConfig) sizes() []int {
	var out []int
	for _, n := range []int{1, c.Services / 10, c.Services / 4, c.Services / 2, c.Services} {
		if n > 0 && (len(out) == 0 || n > out[len(out)-1]) {
			out = append(out, n)
		}
	}
	return out
}

// Scale measures what sleeping services cost: the time to start, memory, and the use of the processor while
// nothing happens. It needs root.
func Scale(ctx context.Context, cfg ScaleConfig) (*Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var samples []ScaleSample
	load := loadAverage()
	for i, n := range cfg.sizes() {
		s, err := scaleOne(ctx, cfg, n)
		if err != nil {
			return nil, fmt.Errorf("lab scale: %d services: %w", n, err)
		}
		samples = append(samples, s)
		cfg.Progress(i+1, len(cfg.sizes()))
	}
	r := scaleReport(samples)
	r.Params = map[string]any{
		"services at most": cfg.Services, "idle time measured (s)": cfg.Idle.Seconds(), "quick": cfg.Quick,
		"load average at begin": load, "load average at end": loadAverage(),
	}
	r.Versions = MachineVersions()
	return r, nil
}

// scaleOne measures one size.
func scaleOne(ctx context.Context, cfg ScaleConfig, n int) (_ ScaleSample, err error) {
	s := ScaleSample{Services: n}
	u, err := newUp(cfg.Wangell, scaleServices)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, u.close()) }()
	if err := u.load(ctx, ""); err != nil {
		return s, err
	}
	begin := time.Now()
	if err := u.start(ctx, scaleManifest(n)); err != nil {
		return s, err
	}
	s.Start = time.Since(begin).Seconds()
	daemon, err := childOf(u.cmd.Process.Pid, "daemon")
	if err != nil {
		return s, err
	}
	if err := measureIdle(ctx, cfg.Idle, map[int]*ProcessUse{daemon: &s.Daemon, u.cmd.Process.Pid: &s.Controller}); err != nil {
		return s, err
	}
	services, err := u.control.Status(ctx)
	if err != nil {
		return s, err
	}
	if len(services) != n {
		return s, fmt.Errorf("the instance has %d services, want %d", len(services), n)
	}
	last := services[n-1].Service
	address := fmt.Sprintf("%s:%d", last.Status.LoadBalancerIP, last.Spec.Port)
	t, err := request(ctx, u.net.Clients[0].Dialer().DialContext, address, address)
	s.Cold = ms(t.FirstByte)
	return s, err
}

// scaleManifest is the manifest of n services.
func scaleManifest(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: s%05d}\n"+
			"spec: {image: %q, targetPort: 8080, port: 80, idleTimeout: 3600}\n---\n", i, image.HelloTag)
	}
	return b.Bytes()
}

// childOf finds the child of a process whose first argument is arg.
func childOf(parent int, arg string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		fields, err := statFields(pid)
		if err != nil || len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(cmdline), "\x00"); err == nil && len(args) > 1 && args[1] == arg {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child %q", parent, arg)
}

// statFields returns the fields of /proc/PID/stat after the name, from the state on (proc_pid_stat(5)).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name may hold spaces and parentheses; the last one ends it.
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])), nil
}

// ticksPerSecond is the unit of utime and stime in /proc/PID/stat, USER_HZ: 100 on every architecture that Go knows.
const ticksPerSecond = 100

func cpuSeconds(pid int) (float64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond, errors.Join(err1, err2)
}

// settle waits until processes have done what follows their start: until they use less than 2 % of a core for a second.
func settle(ctx context.Context, processes map[int]*ProcessUse) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	used := func() (sum float64, err error) {
		for pid := range processes {
			s, err := cpuSeconds(pid)
			if err != nil {
				return 0, err
			}
			sum += s
		}
		return sum, nil
	}
	before, err := used()
	for err == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("wait until nothing happens: %w", ctx.Err())
		}
		var after float64
		if after, err = used(); err == nil && after-before < 0.02 {
			return nil
		}
		before = after
	}
	return err
}

// measureIdle fills in what processes use over a time in which nothing is asked of them.
func measureIdle(ctx context.Context, idle time.Duration, processes map[int]*ProcessUse) error {
	if err := settle(ctx, processes); err != nil {
		return err
	}
	before := map[int]float64{}
	for pid := range processes {
		var err error
		if before[pid], err = cpuSeconds(pid); err != nil {
			return err
		}
	}
	begin := time.Now()
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	elapsed := time.Since(begin).Seconds()
	for pid, use := range processes {
		after, err := cpuSeconds(pid)
		if err != nil {
			return err
		}
		use.CPU = 100 * (after - before[pid]) / elapsed
		status := fmt.Sprintf("/proc/%d/status", pid)
		if use.Resident, err = mebibytes(field(status, "VmRSS")); err == nil {
			use.Anonymous, err = mebibytes(field(status, "RssAnon"))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", status, err)
		}
	}
	return nil
}

// mebibytes reads a value such as "1234 kB".
func mebibytes(s string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSuffix(s, " kB"), 64)
	return n / 1024, err
}

func scaleReport(samples []ScaleSample) *Report {
	last := samples[len(samples)-1]
	t := Table{Title: "By number of services", Header: []string{"services", "start (s)", "daemon (MiB)", "of it its own", "CPU (%)",
		"controller (MiB)", "of it its own", "CPU (%)", "a cold request (ms)"}}
	for _, s := range samples {
		f := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		t.Rows = append(t.Rows, []string{strconv.Itoa(s.Services), f(s.Start), f(s.Daemon.Resident), f(s.Daemon.Anonymous), f(s.Daemon.CPU),
			f(s.Controller.Resident), f(s.Controller.Anonymous), f(s.Controller.CPU), f(s.Cold)})
	}
	return &Report{
		Name: "scale", Title: "Sleeping services: start, memory, use of the processor", Time: time.Now(), Raw: samples,
		Summary: Summary{
			{"services", float64(last.Services), "sleeping services"},
			{"start_s", last.Start, "wangell up: seconds until every service can be woken"},
			{"daemon_rss_mib", last.Daemon.Resident, "daemon: resident memory (MiB)"},
			{"daemon_cpu_percent", last.Daemon.CPU, "daemon: use of one core while nothing happens (%)"},
			{"controller_rss_mib", last.Controller.Resident, "controller: resident memory (MiB)"},
			{"controller_cpu_percent", last.Controller.CPU, "controller: use of one core while nothing happens (%)"},
			{"cold_ms", last.Cold, "one cold request among them (ms)"},
		},
		How: "An instance of Wangell with a containerd of its own runs in a network namespace. Its services have one image and are asleep. The start is timed from " +
			"the start of the program until the instance says that it can wake every service: the manifest is read, addresses are given, the gate is loaded and attached, and the " +
			"table of services is in the gate. Once it has done what follows a start (less than 2 % of a core for a second), nothing is asked of it for the idle time; memory is VmRSS and RssAnon at its end, and the use of the processor is what the " +
			"kernel counted for the process, in steps of 10 ms. Then one client on another host makes a cold request to the last service. Maps of the gate are memory of the kernel and not in these numbers; " +
			"they are bounded by their limits, see docs/architecture.md.",
		Tables: []Table{t},
		Figure: scaleFigure(samples),
	}
}

// scaleFigure draws memory above the time to start.
func scaleFigure(samples []ScaleSample) Figure {
	return func(c draw.Canvas) error {
		names := make([]string, len(samples))
		memory, start := 64.0, 1.0
		for i, s := range samples {
			names[i] = fmt.Sprintf("%d services", s.Services)
			memory, start = max(memory, s.Daemon.Resident, s.Controller.Resident), max(start, s.Start)
		}
		top := newPlot("Resident memory with so many sleeping services: daemon (blue) and controller (orange)", "MiB")
		milliseconds(top, memory*1.08)
		rows(top, names)
		bottom := newPlot("Start of wangell up until every service can be woken", "seconds")
		milliseconds(bottom, start*1.08)
		rows(bottom, names)
		for i, s := range samples {
			y := rowAt(i, len(samples))
			top.Add(bar{to: s.Daemon.Resident, y: y + 0.19, thickness: 0.34, fill: blue, text: fmt.Sprintf("%.0f", s.Daemon.Resident)},
				bar{to: s.Controller.Resident, y: y - 0.19, thickness: 0.34, fill: orange, text: fmt.Sprintf("%.0f", s.Controller.Resident)})
			bottom.Add(bar{to: s.Start, y: y, thickness: 0.5, fill: grey, text: fmt.Sprintf("%.2f", s.Start)})
		}
		panels := plot.Align([][]*plot.Plot{{top}, {bottom}}, draw.Tiles{Rows: 2, Cols: 1, PadY: 12}, c)
		top.Draw(panels[0][0])
		bottom.Draw(panels[1][0])
		return nil
	}
}
