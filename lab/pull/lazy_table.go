// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

const howLazy = `The image of the report "pull", with gzip and, by wangell image convert, in a format
for lazy pulls (see the settings), is pulled from a registry behind a limited link by containerd's
client library, as wangell up does it: stock into containerd's own overlayfs, lazy through
wangell-snapshotter with its defaults. Containerd is the one of the report "pull"; each pull has a containerd
and a snapshotter of its own, which have nothing yet. Then a program runs with the image as its root
(chroot, on a snapshot as a container has it): run is until it has ended, and for a program that only
prints that is its first output. The image has no /bin/sh: the shell is bash. Stock is pulled once a
round, for all programs; lazily, each program has a pull of its own. Optimised is what wangell image
optimise makes: sh, print and train have run once on another machine, and the files that they opened
come first. The sweep reads every file with other settings of the background. All values are medians.`

// lazySamples are all samples of the part lazy, in the order in which they were taken.
type lazySamples struct {
	Runs []LazyRun `json:"runs"`
	// Packed is the size of the optimised image in bytes, First the part of it that comes first, and Files the number
	// of recorded files.
	Packed int64 `json:"packed_bytes"`
	First  int64 `json:"first_bytes"`
	Files  int   `json:"files"`
}

// newLazyReport makes the report of lazy pulls. The caller adds time, parameters and versions.
func newLazyReport(raw lazySamples) *report.Report {
	r := &report.Report{
		Name: lazyName, Title: "Programs that start before their image is there", Raw: raw, How: howLazy, Answer: lazyAnswer,
		Summary: raw.summary(), Tables: []report.Table{raw.table()}, Figure: func(c draw.Canvas) error {
			raw.plot().Draw(c)
			return nil
		},
	}
	if t := raw.sweepTable(); len(t.Rows) > 0 {
		r.Tables = append(r.Tables, t)
	}
	return r
}

// of returns a figure of the runs of a program after a kind of pull, with the defaults.
func (raw lazySamples) of(program, kind string, f func(LazyRun) float64) []float64 {
	return report.Collect(raw.Runs, func(r LazyRun) (float64, bool) {
		return f(r), r.Program == program && r.Kind == kind && r.Workers == 0
	})
}

func runPull(r LazyRun) float64  { return r.Pull }
func runRun(r LazyRun) float64   { return r.Run }
func runTotal(r LazyRun) float64 { return r.Pull + r.Run }

func (raw lazySamples) summary() (s report.Summary) {
	for _, p := range lazyPrograms {
		for _, kind := range lazyKinds {
			s = append(s,
				report.Value{Key: fmt.Sprintf("lazy_%s_pull_s_%s", p.name, kind), Value: median(raw.of(p.name, kind, runPull)),
					Meaning: fmt.Sprintf("%s, %s: pull (s)", p.meaning, kind)},
				report.Value{Key: fmt.Sprintf("lazy_%s_run_s_%s", p.name, kind), Value: median(raw.of(p.name, kind, runRun)),
					Meaning: fmt.Sprintf("%s, %s: run after it (s)", p.meaning, kind)})
		}
	}
	for _, p := range lazyPrograms {
		for _, kind := range lazyKinds[1:] {
			s = append(s, report.Value{Key: fmt.Sprintf("lazy_%s_speedup_%s", p.name, kind), Value: raw.speedup(p.name, kind),
				Meaning: fmt.Sprintf("%s: pull and run, stock by %s", p.meaning, kind)})
		}
	}
	return append(s, report.Value{Key: "lazy_first_bytes_ratio", Value: float64(raw.First) / float64(raw.Packed),
		Meaning: "part of the optimised image that comes first"})
}

// speedup returns how much sooner a program ends than with stock.
func (raw lazySamples) speedup(program, kind string) float64 {
	return median(raw.of(program, LazyStock, runTotal)) / median(raw.of(program, kind, runTotal))
}

func (raw lazySamples) table() report.Table {
	t := report.Table{Title: "Pull, then run (medians, in seconds)",
		Header: []string{"program", "image", "pull", "run", "both", "slowest", "stock by it"}}
	for _, p := range lazyPrograms {
		for _, kind := range lazyKinds {
			both := raw.of(p.name, kind, runTotal)
			if len(both) == 0 {
				continue
			}
			t.Rows = append(t.Rows, []string{p.meaning, kind, cell(median(raw.of(p.name, kind, runPull))),
				cell(median(raw.of(p.name, kind, runRun))), cell(median(both)), cell(report.Percentile(both, 100)),
				fmt.Sprintf("%.2f ×", raw.speedup(p.name, kind))})
		}
	}
	return t
}

func (raw lazySamples) sweepTable() report.Table {
	t := report.Table{Title: "Every file is read, lazy: other settings of the background (s)",
		Header: []string{"requests at once", "of (KiB)", "median", "slowest"}}
	for _, s := range sweep {
		times := report.Collect(raw.Runs, func(r LazyRun) (float64, bool) {
			return runTotal(r), r.Workers == s.workers && r.Piece == s.piece
		})
		if len(times) > 0 {
			t.Rows = append(t.Rows, []string{fmt.Sprint(s.workers), fmt.Sprint(s.piece >> 10), cell(median(times)),
				cell(report.Percentile(times, 100))})
		}
	}
	return t
}

// lazyColours are the colours of the kinds of pulls, and their places in a row.
var lazyColours = map[string]color.RGBA{LazyStock: report.Blue, Lazy: report.Orange, Optimised: report.Green}

func (raw lazySamples) plot() *plot.Plot {
	longest := 1.0
	var names []string
	for _, p := range lazyPrograms {
		names = append(names, p.meaning)
	}
	for _, r := range raw.Runs {
		if r.Workers == 0 {
			longest = max(longest, runTotal(r))
		}
	}
	p := report.NewPlot("From the start of the pull to the end of a program: stock blue, lazy orange, optimised green",
		"seconds (medians, and every sample as a dot)")
	report.XFromZero(p, 1.12*longest)
	report.NamedRows(p, names)
	for i, program := range lazyPrograms {
		for k, kind := range lazyKinds {
			times := raw.of(program.name, kind, runTotal)
			if len(times) == 0 || math.IsNaN(median(times)) {
				continue
			}
			y := report.RowAt(i, len(lazyPrograms)) + 0.27*float64(1-k)
			p.Add(report.Bar{To: median(times), Y: y, Thickness: 0.24, Fill: report.Translucent(lazyColours[kind], 0.75)},
				report.Dots{Samples: times, Y: y},
				label{x: report.Percentile(times, 100), y: y, text: fmt.Sprintf("%.1f s", median(times))})
		}
	}
	return p
}

// lazyAnswer is what the report says first.
var lazyAnswer = report.Answer{
	Sentences: []string{
		"From the beginning of the pull to the end of the program, a shell that prints a line is done " +
			"{lazy_sh_speedup_lazy} times as soon with a lazy pull as with a stock one, and a training run " +
			"{lazy_train_speedup_lazy} times.",
		"The more a program reads, the less it gains: one that reads every file is done " +
			"{lazy_all_speedup_lazy} times as soon.",
	},
	Quoted: []string{
		"lazy_sh_pull_s_stock", "lazy_sh_pull_s_lazy", "lazy_sh_run_s_lazy", "lazy_sh_speedup_lazy",
		"lazy_print_speedup_lazy", "lazy_train_speedup_lazy", "lazy_train_speedup_optimised", "lazy_all_speedup_lazy",
		"lazy_first_bytes_ratio",
	},
}
