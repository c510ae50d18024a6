// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// jmeterVersion is the version in redmine/pom.xml.
const jmeterVersion = "5.6.3"

// totalLabel is the label of JMeter's line for all samples.
const totalLabel = "TOTAL"

//go:embed redmine/pom.xml
var jmeterPOM []byte

//go:embed redmine/plan.jmx
var jmeterPlan []byte

//go:embed redmine/aggregate.groovy
var jmeterAggregate []byte

// jmeter is an installation of Apache JMeter.
type jmeter struct{ home string }

// findJMeter returns the JMeter in the user's cache folder. Maven fetches it the first time.
func findJMeter(ctx context.Context) (jmeter, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return jmeter{}, err
	}
	sum := sha256.Sum256(jmeterPOM)
	j := jmeter{home: filepath.Join(base, "wangell", fmt.Sprintf("jmeter-%s-%x", jmeterVersion, sum[:4]))}
	if err := os.MkdirAll(filepath.Dir(j.home), 0o755); err != nil {
		return j, err
	}
	lock, err := os.OpenFile(j.home+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return j, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return j, err
	}
	if _, err := os.Stat(j.home); err == nil {
		return j, nil
	}
	return j, j.fetch(ctx)
}

// fetch downloads JMeter with Maven, and puts the files where JMeter looks for them.
func (j jmeter) fetch(ctx context.Context) (err error) {
	for _, program := range []string{"mvn", "java"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("needs %s to fetch Apache JMeter: apt-get install maven", program)
		}
	}
	work, err := os.MkdirTemp(filepath.Dir(j.home), "jmeter-new-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	home := filepath.Join(work, "home")
	lib := filepath.Join(home, "lib")
	ext := filepath.Join(lib, "ext")
	if err := errors.Join(os.MkdirAll(ext, 0o755), os.Mkdir(filepath.Join(lib, "junit"), 0o755)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), jmeterPOM, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies",
		"-DoutputDirectory="+lib)
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch Apache JMeter: mvn: %w: %.2000s", err, out)
	}
	jars, err := filepath.Glob(filepath.Join(lib, "ApacheJMeter_*.jar"))
	if err != nil {
		return err
	}
	for _, jar := range jars { // plug-ins, including the core
		if err := os.Rename(jar, filepath.Join(ext, filepath.Base(jar))); err != nil {
			return err
		}
	}
	if err := unzipFolder(filepath.Join(ext, "ApacheJMeter_config-"+jmeterVersion+".jar"), "bin/", home); err != nil {
		return err
	}
	program := filepath.Join(home, "bin", "ApacheJMeter.jar")
	err = os.Rename(filepath.Join(lib, "ApacheJMeter-"+jmeterVersion+".jar"), program)
	if err != nil {
		return err
	}
	return os.Rename(home, j.home)
}

// unzipFolder unpacks a folder of an archive.
func unzipFolder(archive, folder, into string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, f := range r.File {
		if !strings.HasPrefix(f.Name, folder) || f.FileInfo().IsDir() || !filepath.IsLocal(f.Name) {
			continue
		}
		data, err := f.Open()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(data)
		to := filepath.Join(into, f.Name)
		err = errors.Join(err, data.Close(), os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o600))
		if err != nil {
			return err
		}
	}
	return nil
}

// run runs the test plan from the clients' namespace.
func (j jmeter) run(ctx context.Context, c client, jtl string, users int, ramp time.Duration) error {
	plan := filepath.Join(c.dir, "plan.jmx")
	if err := os.WriteFile(plan, jmeterPlan, 0o600); err != nil {
		return err
	}
	s := c.servers[0]
	argv := []string{"java", "-Xms256m", "-Xmx1g", "-Djava.awt.headless=true",
		"-jar", filepath.Join(j.home, "bin", "ApacheJMeter.jar"), "-n", "-t", plan, "-l", jtl,
		"-j", filepath.Join(c.dir, "jmeter.log"), "-Jjmeter.save.saveservice.output_format=csv",
		"-Jjmeter.save.saveservice.subresults=false", // the parts of an operation that is redirected
		"-Jhost=" + s.Addr().String(), "-Jport=" + strconv.Itoa(int(s.Port())), "-Jpassword=labadmin1",
		"-Jusers=" + strconv.Itoa(users), "-Jramp=" + strconv.Itoa(int(ramp.Seconds()))}
	cmd := c.ns.Command(ctx, argv...)
	cmd.Dir = c.dir
	out, err := output(cmd)
	if err != nil {
		return fmt.Errorf("%w: %.1000s", err, out)
	}
	return nil
}

// jtlColumns are the columns that are used.
var jtlColumns = []string{"timeStamp", "elapsed", "label", "success", "bytes", "responseCode", "failureMessage"}

// readJTL reads JMeter's samples, by operation.
func readJTL(file string) ([]Operation, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("JMeter's samples: %w", err)
	}
	if len(records) < 2 {
		return nil, errors.New("JMeter's samples: there are none")
	}
	at := map[string]int{}
	for _, name := range jtlColumns {
		if at[name] = slices.Index(records[0], name); at[name] < 0 {
			return nil, fmt.Errorf("JMeter's samples: no column %s", name)
		}
	}
	var ops []Operation
	begins, ends := []int64{}, []int64{}
	for _, r := range records[1:] {
		begin, err1 := strconv.ParseInt(r[at["timeStamp"]], 10, 64)
		elapsed, err2 := strconv.ParseInt(r[at["elapsed"]], 10, 64)
		bytes, err3 := strconv.ParseInt(r[at["bytes"]], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("JMeter's samples: %q: %w", r, err)
		}
		label := r[at["label"]]
		i := slices.IndexFunc(ops, func(o Operation) bool { return o.Name == label })
		if i < 0 {
			i = len(ops)
			ops = append(ops, Operation{Name: label})
			begins, ends = append(begins, begin), append(ends, begin)
		}
		ops[i].Latencies = append(ops[i].Latencies, float64(elapsed))
		ops[i].Bytes += bytes
		if r[at["success"]] != "true" {
			ops[i].fail(r[at["responseCode"]] + " " + r[at["failureMessage"]])
		}
		begins[i], ends[i] = min(begins[i], begin), max(ends[i], begin+elapsed)
		ops[i].Seconds = float64(ends[i]-begins[i]) / 1000
	}
	return ops, nil
}

// fail counts an error with its message.
func (o *Operation) fail(message string) {
	o.Errors++
	if o.Failures == nil {
		o.Failures = map[string]int{}
	}
	if _, known := o.Failures[message]; !known && len(o.Failures) == maxFailures {
		message = "others"
	}
	o.Failures[message]++
}

// maxFailures bounds the different messages of an operation.
const maxFailures = 8

// aggregate makes the lines of JMeter's Aggregate Report.
func (j jmeter) aggregate(ctx context.Context, jtl string) ([]JMeterLine, error) {
	script := jtl + ".groovy"
	if err := os.WriteFile(script, jmeterAggregate, 0o600); err != nil {
		return nil, err
	}
	classes := strings.Join([]string{filepath.Join(j.home, "lib", "*"), filepath.Join(j.home, "lib", "ext", "*")}, ":")
	out, err := output(exec.CommandContext(ctx, "java", "-Djava.awt.headless=true", "-cp", classes, "groovy.ui.GroovyMain",
		script, j.home, jtl))
	if err != nil {
		return nil, fmt.Errorf("JMeter's aggregate: %w", err)
	}
	return parseAggregate(string(out))
}

func parseAggregate(out string) (lines []JMeterLine, err error) {
	for text := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSpace(text), ",")
		if len(fields) != 10 {
			continue // a message of a library
		}
		var v [9]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(fields[i+1], 64); err != nil {
				return nil, fmt.Errorf("JMeter's aggregate: %q: %w", text, err)
			}
		}
		lines = append(lines, JMeterLine{Label: fields[0], Samples: int(v[0]), Mean: v[1], Median: v[2], P90: v[3], Min: v[4],
			Max: v[5], ErrorPct: 100 * v[6], Throughput: v[7], KBPerS: v[8]})
	}
	if len(lines) < 2 {
		return nil, fmt.Errorf("JMeter's aggregate: no lines: %.500q", out)
	}
	return lines, nil
}

// checkAggregate compares JMeter's lines with the operations as they are read here. Percentiles may differ by one
// sample, as there are several definitions of them.
func checkAggregate(ops []Operation, lines []JMeterLine) error {
	total := Operation{Name: totalLabel}
	for _, o := range ops {
		total.Latencies = append(total.Latencies, o.Latencies...)
		total.Errors += o.Errors
	}
	for _, o := range append(slices.Clone(ops), total) {
		i := slices.IndexFunc(lines, func(l JMeterLine) bool { return l.Label == o.Name })
		if i < 0 {
			return fmt.Errorf("JMeter's aggregate has no line %q", o.Name)
		}
		l, a := lines[i], aggregateOf([]Operation{o})
		same := l.Samples == a.samples && math.Abs(l.Mean-a.mean) < 0.01 && l.Min == a.least && l.Max == a.most &&
			math.Abs(l.ErrorPct-a.errorPct()) < 0.001
		if !same || !nearRank(o.Latencies, 0.5, l.Median) || !nearRank(o.Latencies, 0.9, l.P90) {
			return fmt.Errorf("JMeter's aggregate of %q, %+v, differs from ours, %+v", o.Name, l, a)
		}
	}
	return nil
}

// nearRank reports whether a value lies between the samples one rank below and one above a percentile's.
func nearRank(samples []float64, p, value float64) bool {
	sorted := slices.Sorted(slices.Values(samples))
	at := p * float64(len(sorted)-1)
	below, above := max(0, int(at)-1), min(len(sorted)-1, int(at)+2)
	return sorted[below] <= value && value <= sorted[above]
}
