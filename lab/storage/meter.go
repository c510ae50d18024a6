// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/lab/report"
)

// meter observes the machine during a run.
type meter struct {
	iostat *iostat
	begin  counters
	at     time.Time
	load   string
	dirty  chan int64 // closed by it, to get the most
	end    chan struct{}
}

// startMeter starts to observe.
func startMeter() (*meter, error) {
	m := &meter{load: report.LoadAverage(), end: make(chan struct{}), dirty: make(chan int64, 1)}
	var err error
	if m.begin, err = readCounters(); err != nil {
		return nil, err
	}
	if m.iostat, err = startIostat(); err != nil {
		return nil, err
	}
	m.at = time.Now()
	go m.watchDirty()
	return m, nil
}

// watchDirty samples the amount of dirty memory twice a second.
func (m *meter) watchDirty() {
	most := int64(0)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		fields := strings.Fields(report.Field("/proc/meminfo", "Dirty")) // "123 kB"
		if len(fields) > 0 {
			kb, _ := strconv.ParseInt(fields[0], 10, 64) // the kernel writes digits
			most = max(most, kb)
		}
		select {
		case <-tick.C:
		case <-m.end:
			m.dirty <- most
			return
		}
	}
}

// stop ends the observation and writes it into a run.
func (m *meter) stop(r *Run) error {
	close(m.end)
	r.Machine.DirtyMaxKB = <-m.dirty
	r.Machine.Load = m.load
	r.Seconds = float64(time.Since(m.at).Milliseconds()) / 1000
	end, err := readCounters()
	out := m.iostat.stop()
	if err != nil {
		return err
	}
	end.since(m.begin, &r.Machine)
	p, err := parseIostat(bytes.NewReader(out))
	r.Iostat, r.Header, r.Line = p.rows, p.header, p.line
	return err
}

// counters are the kernel's cumulative counters.
type counters struct {
	at                  time.Time
	busy, iowait, total float64       // of all processors, in ticks
	cpu, io, ioFull     time.Duration // pressure
}

func readCounters() (c counters, err error) {
	c.at = time.Now()
	stat, err := os.ReadFile("/proc/stat") // proc_stat(5)
	if err != nil {
		return c, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line)[1:] {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return c, fmt.Errorf("/proc/stat: %q: %w", line, err)
		}
		switch {
		case i >= 8: // guests, which are part of user
		case i == 3:
			c.total += v
		case i == 4:
			c.iowait += v
			c.total += v
		default:
			c.busy += v
			c.total += v
		}
	}
	c.cpu, _ = pressure("cpu", "some")
	c.io, _ = pressure("io", "some")
	c.ioFull, _ = pressure("io", "full")
	return c, nil
}

// pressure returns a total of /proc/pressure; false if the kernel has none.
func pressure(of, kind string) (time.Duration, bool) {
	data, err := os.ReadFile("/proc/pressure/" + of)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		_, total, found := strings.Cut(strings.TrimSpace(line), "total=")
		us, err := strconv.ParseInt(total, 10, 64)
		if found && err == nil && strings.HasPrefix(line, kind+" ") {
			return time.Duration(us) * time.Microsecond, true
		}
	}
	return 0, false
}

// since writes what happened since earlier counters.
func (c counters) since(b counters, m *Machine) {
	took := c.at.Sub(b.at).Seconds()
	share := func(part, of float64) float64 {
		if of <= 0 {
			return 0
		}
		return 100 * part / of
	}
	m.BusyPct = share(c.busy-b.busy, c.total-b.total)
	m.IOWaitPct = share(c.iowait-b.iowait, c.total-b.total)
	m.CPUPressurePct = share((c.cpu - b.cpu).Seconds(), took)
	m.IOPressurePct = share((c.io - b.io).Seconds(), took)
	m.IOFullPct = share((c.ioFull - b.ioFull).Seconds(), took)
}

// dropCaches writes what is dirty and empties the machine's page cache and caches of names (proc_sys_vm(5)).
func dropCaches() error {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
		return fmt.Errorf("drop caches: %w", err)
	}
	return nil
}
