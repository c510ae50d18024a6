// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"strconv"
	"strings"

	"wangell.loutres.me/lab/report"
)

const howDisk = `iostat -x 3 ran throughout each measurement, beside counters of the kernel: processor time
(/proc/stat), the share of time in which some or all tasks waited for processor or disk (/proc/pressure), and the most
that waited to be written (/proc/meminfo). They are the machine's: what else runs is in them. The line of iostat is
that with the most writing (wkB/s) of any device in all repetitions. A file system in a file has two devices, the loop
device and the one that the file is on. The plot has the device with the most writing that is no loop device, in the
first repetition.`

// newDiskReport makes the report about the disk from the same samples.
func newDiskReport(w workload, raw Samples) *report.Report {
	var sum report.Summary
	for _, c := range raw.Cases {
		for _, v := range machineValues(raw.of(c.Key)) {
			sum = append(sum, report.Value{Key: c.Key + "_" + v.Key, Value: v.Value, Meaning: c.Name + ": " + v.Meaning})
		}
	}
	return &report.Report{Name: reportName(w.name()) + diskSuffix, Title: w.title() + ": the disk", Raw: raw, How: howDisk,
		Answer: diskAnswer, Summary: sum, Tables: []report.Table{iostatTable(raw)}, Figure: diskFigure(raw)}
}

// machineValues are the means of what the machine did in some runs.
func machineValues(runs []Run) report.Summary {
	mean := func(of func(Run) float64) float64 {
		return report.Mean(report.Collect(runs, func(r Run) (float64, bool) { return of(r), true }))
	}
	return report.Summary{
		{Key: "iostat_max_wkb_s", Meaning: "most writing, kB/s", Value: mostWriting(runs)},
		{Key: "cpu_busy_pct", Meaning: "processors busy, %", Value: mean(func(r Run) float64 { return r.Machine.BusyPct })},
		{Key: "cpu_iowait_pct", Meaning: "processors waiting for the disk, %",
			Value: mean(func(r Run) float64 { return r.Machine.IOWaitPct })},
		{Key: "io_pressure_pct", Meaning: "some task waits for the disk, % of time",
			Value: mean(func(r Run) float64 { return r.Machine.IOPressurePct })},
		{Key: "cpu_pressure_pct", Meaning: "some task waits for a processor, % of time",
			Value: mean(func(r Run) float64 { return r.Machine.CPUPressurePct })},
		{Key: "dirty_max_mib", Meaning: "most that waited to be written, MiB",
			Value: mean(func(r Run) float64 { return float64(r.Machine.DirtyMaxKB) / 1024 })},
	}
}

// iostatTable has the line of iostat with the most writing of each test, as iostat prints it.
func iostatTable(raw Samples) report.Table {
	t := report.Table{Title: "iostat -x: the line with the most writing"}
	for _, c := range raw.Cases {
		var most *Run
		for _, r := range raw.of(c.Key) {
			if r.Line != "" && (most == nil || mostWriting([]Run{r}) > mostWriting([]Run{*most})) {
				most = &r
			}
		}
		if most == nil {
			continue
		}
		if t.Header == nil {
			t.Header = append([]string{"test", "repetition"}, strings.Fields(most.Header)...)
		}
		t.Rows = append(t.Rows, append([]string{c.Name, strconv.Itoa(most.Repetition)}, strings.Fields(most.Line)...))
	}
	if t.Header == nil {
		t.Header = []string{"test"}
	}
	return t
}

// diskAnswer is what the report on the disk says first.
var diskAnswer = report.Answer{
	Sentences: []string{
		"The disk writes at most {layer_iostat_max_wkb_s} kB/s with the data in the container's layer, " +
			"{volume_iostat_max_wkb_s} kB/s on a volume and {direct_iostat_max_wkb_s} kB/s without a container.",
		"The processors are busy for {layer_cpu_busy_pct} %, {volume_cpu_busy_pct} % and " +
			"{direct_cpu_busy_pct} % of the time, and at most {layer_dirty_max_mib} MiB, {volume_dirty_max_mib} " +
			"MiB and {direct_dirty_max_mib} MiB wait to be written.",
	},
	Quoted: []string{
		"direct_iostat_max_wkb_s", "layer_iostat_max_wkb_s", "preallocated_iostat_max_wkb_s",
		"sparse_iostat_max_wkb_s", "volume_iostat_max_wkb_s", "split_layer_iostat_max_wkb_s",
		"split_volume_iostat_max_wkb_s", "tuned_iostat_max_wkb_s", "btrfs_layer_iostat_max_wkb_s",
		"btrfs_volume_iostat_max_wkb_s",
	},
}
