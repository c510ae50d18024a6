// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/debimage"
)

// fio is the workload of the same name: servers of fio, which read and write files of their own.
type fio struct{}

const (
	fioPort    = 8765
	fioJobs    = 4 // in all servers together
	fioSize    = "64m"
	fioBlock   = "16k" // InnoDB's page
	fioRelaxed = 32
)

func (fio) name() string  { return "fio" }
func (fio) title() string { return "Where a container writes: fio" }

func (fio) how() string {
	return fmt.Sprintf(`The application is fio's own server, which the client tells what to do. %d processes read and write
blocks of %s at random places in a file of %s each, as many reads as writes. After each write they call fdatasync, as a
database does at a commit. In two containers each has half of the processes. Times are from fio's histograms, whose
steps are below 1 %%.`, fioJobs, fioBlock, fioSize)
}

func (fio) headline() string { return "fdatasync" }

func (fio) tuning() string {
	return fmt.Sprintf("fdatasync after %d writes instead of each", fioRelaxed)
}

func (fio) limits() (cpu, memory string) { return "500m", "192Mi" }

func (fio) servers(c Case) []server {
	r := debimage.Recipe{
		Name: "lab-fio", Packages: []string{"fio"}, Without: []string{"python3*", "libpython3*", "media-types"},
		Entrypoint: []string{"/usr/bin/fio", "--server=0.0.0.0," + strconv.Itoa(fioPort)}, Port: fioPort,
		Files: map[string]image.File{"/data": {Mode: fs.ModeDir | 0o755}},
	}
	first := server{name: "first", recipe: r, port: fioPort, data: "/data"}
	if c.Split {
		second := first
		second.name = "second"
		return []server{first, second}
	}
	return []server{first}
}

// job is fio's job file for one of several servers.
func (fio) job(servers int, l load, runtime time.Duration) string {
	every := 1
	if l.tuned {
		every = fioRelaxed
	}
	text := fmt.Sprintf(`[lab]
ioengine=psync
directory=/data
size=%s
bs=%s
rw=randrw
rwmixread=50
fdatasync=%d
time_based=1
runtime=%d
numjobs=%d
group_reporting=1
fallocate=none
`, fioSize, fioBlock, every, int(runtime.Seconds()), fioJobs/servers)
	if l.rate > 0 { // operations per second of each process and direction
		each := max(1, (l.rate+60*fioJobs)/(2*60*fioJobs))
		text += fmt.Sprintf("rate_iops=%d,%d\nrate_process=poisson\n", each, each)
	}
	return text
}

// prepare writes the files, so that a run does not measure how they grow.
func (f fio) prepare(ctx context.Context, c client) error {
	job := strings.Replace(f.job(len(c.servers), load{tuned: true}, time.Second), "rw=randrw", "rw=write", 1)
	return until(ctx, func() error {
		_, err := f.run(ctx, c, job)
		return err
	})
}

func (f fio) measure(ctx context.Context, c client, l load) (Result, error) {
	out, err := f.run(ctx, c, f.job(len(c.servers), l, l.duration))
	if err != nil {
		return Result{}, err
	}
	ops, err := parseFio(out, l.duration)
	return Result{Operations: ops}, err
}

// run runs one job on all servers and returns fio's JSON.
func (f fio) run(ctx context.Context, c client, job string) ([]byte, error) {
	file := filepath.Join(c.dir, "job.fio")
	if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
		return nil, err
	}
	argv := []string{"fio", "--output-format=json+"}
	for _, s := range c.servers {
		argv = append(argv, fmt.Sprintf("--client=%s,%d", s.Addr(), s.Port()), file)
	}
	return output(c.ns.Command(ctx, argv...))
}

func (fio) versions(ctx context.Context) (map[string]string, error) {
	return versionOf(ctx, "fio", "fio", "--version")
}

// fioResult is a part of fio's JSON.
type fioResult struct {
	Clients []struct {
		Name  string       `json:"jobname"`
		Error int          `json:"error"`
		Read  fioDirection `json:"read"`
		Write fioDirection `json:"write"`
		Sync  struct {
			Latency fioLatency `json:"lat_ns"`
		} `json:"sync"`
	} `json:"client_stats"`
}

type fioDirection struct {
	Bytes   int64      `json:"io_bytes"`
	Latency fioLatency `json:"clat_ns"`
}

// fioLatency has the number of operations (value) by time in ns (key).
type fioLatency struct {
	Bins map[string]int `json:"bins"`
}

func (l fioLatency) latencies() (out Latencies, err error) {
	for _, key := range slices.Sorted(maps.Keys(l.Bins)) {
		ns, err := strconv.ParseFloat(key, 64)
		if err != nil {
			return nil, fmt.Errorf("fio's histogram has %q: %w", key, err)
		}
		for range l.Bins[key] {
			out = append(out, ns/1e6)
		}
	}
	slices.Sort(out)
	return out, nil
}

// parseFio returns what all servers did, by operation. Before the JSON fio may print lines of text.
func parseFio(out []byte, took time.Duration) ([]Operation, error) {
	begin := bytes.IndexByte(out, '{')
	if begin < 0 {
		return nil, fmt.Errorf("fio printed no JSON: %.500q", out)
	}
	var result fioResult
	if err := json.Unmarshal(out[begin:], &result); err != nil {
		return nil, fmt.Errorf("fio's JSON: %w", err)
	}
	ops := []Operation{{Name: "read"}, {Name: "write"}, {Name: "fdatasync"}}
	for _, c := range result.Clients {
		if c.Name == "All clients" { // the sum
			continue
		}
		if c.Error != 0 {
			return nil, fmt.Errorf("fio: error %d on a server", c.Error)
		}
		ops[0].Bytes += c.Read.Bytes
		ops[1].Bytes += c.Write.Bytes
		for i, l := range []fioLatency{c.Read.Latency, c.Write.Latency, c.Sync.Latency} {
			more, err := l.latencies()
			if err != nil {
				return nil, err
			}
			ops[i].Latencies = append(ops[i].Latencies, more...)
		}
	}
	for i := range ops {
		ops[i].Seconds = took.Seconds()
	}
	if len(ops[1].Latencies) == 0 {
		return nil, errors.New("fio wrote nothing")
	}
	return ops, nil
}
