// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"
	"math"

	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/lab/report"
)

const (
	reportName = "pull"
	phasesName = "pull-phases"
	lazyName   = "pull-lazy"
	peersName  = "pull-peers"
)

const how = `An image in the shape of machine-learning images that grew for years is made of Debian packages and
Python wheels: many layers, of which one has about 40 % of the bytes. It is stored in seven ways by
wangell image convert, and pushed to the distribution project's registry, in a network namespace behind
a veth whose sending side has the queueing discipline tbf. For each pull a containerd starts with empty
folders in another namespace, and its CRI plugin pulls, as for kubelet; the pull is timed around that
call. What earlier pulls left to be written is written before. The pulls of a round run in a random
order, so that what else the machine does meets all. Defaults are those of containerd, without any
program in its $PATH; tuned is what wangell doctor recommends: several unpackers, a program for gzip in
$PATH, and the snapshotter erofs, as far as this containerd and kernel can; overlayfs is the same with
containerd's default snapshotter. Downloading and unpacking are the times in which at least one layer was
downloaded, or unpacked and committed; both run at once, so that their sum is more than the pull. Cores
busy is the CPU time of containerd, its helpers and the registry, which share the processor, divided by
the length of the pull: near the number of cores, the processor is what bounds the pull; far below it,
one layer that is unpacked alone, the link (packed bytes by its rate) or the disk. Speed-up is by gzip
with the defaults. The times come from containerd's log and events, of which the log costs some time at
the level debug. First wakes: an instance of wangell up with a containerd of its own, which has no
image, gets the service and then one request from another namespace, timed from before connect() to the
first byte of the answer. Stock is imagePull {when: Wake}; prefetch is the default, and the request
comes when the image is there; lazy is imagePull {when: Wake, mode: Lazy}, with the image in a format for that; warm is
the next wake after one with stock or prefetch, and a sleep. The last two wakes are those of a cluster:
two nodes, each a network namespace with a containerd and a daemon (wangell daemon), connected by the
wire to a controller. One node has the image, which a service there wants; the service that gets the
request has imagePull {when: Wake}, and its pod is started on the other node, whose CRI pulls the image
then: from the registry alone, or with --peers. A mirror shares only repositories of which its node is
to have an image, so another service with a small image of that repository is on both nodes. Both nodes,
their mirrors and the registry share the processor and the disk. All values are medians.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(raw Samples) *report.Report {
	r := &report.Report{
		Name: reportName, Title: "Pulling an image: ways to store it, settings, and the first wake", Raw: raw, How: how,
		Answer:  pullAnswer,
		Summary: summary(raw), Figure: figure(raw),
	}
	for _, t := range []report.Table{
		imageTable(raw), pullTable(raw), adviceTable(raw), otherTable(raw), wakeTable(raw),
	} {
		if len(t.Rows) > 0 { // its part has run
			r.Tables = append(r.Tables, t)
		}
	}
	return r
}

// suffixes are the ends of the keys of settings.
var suffixes = []struct{ settings, suffix, meaning string }{
	{Defaults, "", "containerd's defaults"}, {Tuned, "_tuned", "recommended settings"},
	{Overlayfs, "_overlayfs", "recommended settings but overlayfs"},
}

func summary(raw Samples) report.Summary {
	var s report.Summary
	for _, of := range []struct {
		key, meaning string
		f            func(Pull) float64
	}{
		{"pull_s_", "pull", pullSeconds}, {"fetch_s_", "downloading", fetchSeconds},
		{"unpack_s_", "unpacking", unpackSeconds},
	} {
		for _, x := range suffixes {
			for _, v := range variants(0) {
				if x.settings == Overlayfs && len(raw.seconds(v.name, Overlayfs, false, of.f)) == 0 {
					continue // not all images are pulled with it
				}
				s = append(s, report.Value{Key: of.key + v.name + x.suffix, Value: raw.median(v.name, x.settings, of.f),
					Meaning: fmt.Sprintf("%s, %s: %s (s)", words(v.name), x.meaning, of.meaning)})
			}
		}
	}
	for _, x := range suffixes[1:] {
		if name, seconds := raw.quickest(x.settings); x.settings == Tuned || name != "" {
			s = append(s, report.Value{Key: "speedup_best" + x.suffix,
				Value:   raw.median(original, Defaults, pullSeconds) / seconds,
				Meaning: fmt.Sprintf("gzip with containerd's defaults, by the quickest with %s, %s", x.meaning, words(name))})
		}
	}
	for _, v := range []string{original, best} {
		s = append(s, report.Value{Key: "pull_s_" + v + "_other", Value: median(raw.seconds(v, Defaults, true, pullSeconds)),
			Meaning: words(v) + ", defaults of the other containerd: pull (s)"})
	}
	return append(s,
		report.Value{Key: "first_wake_s_stock", Value: median(raw.wakes(Stock)), Meaning: "first wake, image not there (s)"},
		report.Value{Key: "first_wake_s_prefetch", Value: median(raw.wakes(Prefetch)),
			Meaning: "first wake, image prefetched (s)"},
		report.Value{Key: "first_wake_s_lazy", Value: median(raw.wakes(Lazy)),
			Meaning: "first wake, image pulled lazily (s)"},
		report.Value{Key: "first_wake_s_no_peers", Value: median(raw.wakes(NoPeers)),
			Meaning: "first wake on a node of a cluster, another node has the image, no peers (s)"},
		report.Value{Key: "first_wake_s_peers", Value: median(raw.wakes(Peers)),
			Meaning: "first wake on a node of a cluster, another node has the image, peers (s)"},
		report.Value{Key: "warm_image_wake_s", Value: median(raw.wakes(Warm)), Meaning: "later wake, image there (s)"},
		report.Value{Key: "lost", Value: raw.lost(), Meaning: "lost requests"})
}

// quickest returns the image that is pulled in the least time with settings, and that time.
func (s Samples) quickest(settings string) (name string, seconds float64) {
	seconds = math.NaN()
	for _, v := range variants(0) {
		if t := s.median(v.name, settings, pullSeconds); !math.IsNaN(t) && !(t >= seconds) {
			name, seconds = v.name, t
		}
	}
	return name, seconds
}

func imageTable(raw Samples) report.Table {
	t := report.Table{Title: "The images",
		Header: []string{"image", "layers", "packed (MB)", "largest layer (MB)", "conversion (s)"}}
	for _, i := range raw.Images {
		convert := ""
		if i.Convert > 0 {
			convert = fmt.Sprintf("%.1f", i.Convert)
		}
		t.Rows = append(t.Rows, []string{words(i.Name), fmt.Sprint(i.Layers), megabytes(i.Packed), megabytes(i.Largest),
			convert})
	}
	return t
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

// cell formats a median in seconds.
func cell(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return report.Decimal(v)
}

func pullTable(raw Samples) report.Table {
	t := report.Table{Title: "Pulls (medians, in seconds)", Header: []string{"image", "settings", "pull", "downloading",
		"unpacking", "CPU of containerd", "CPU of the registry", "cores busy", "speed-up"}}
	reference := raw.median(original, Defaults, pullSeconds)
	for _, settings := range []string{Defaults, Parallel, Overlayfs, Tuned} {
		for _, v := range variants(0) {
			pull := raw.median(v.name, settings, pullSeconds)
			if math.IsNaN(pull) {
				continue
			}
			busy := raw.median(v.name, settings, func(p Pull) float64 { return (p.CPU + p.RegistryCPU) / p.Pull })
			t.Rows = append(t.Rows, []string{words(v.name), settings, cell(pull),
				cell(raw.median(v.name, settings, fetchSeconds)), cell(raw.median(v.name, settings, unpackSeconds)),
				cell(raw.median(v.name, settings, func(p Pull) float64 { return p.CPU })),
				cell(raw.median(v.name, settings, func(p Pull) float64 { return p.RegistryCPU })),
				fmt.Sprintf("%.2f of %d", busy, raw.Cores), fmt.Sprintf("%.2f ×", reference/pull)})
		}
	}
	return t
}

// checked are the pieces of advice of image analyse that a measured pull can check.
var checked = []struct{ do, image, settings string }{
	{"zstd", "zstd", Defaults}, {"parallel", original, Parallel}, {"split", "split", Parallel},
	{"zstd+split", best, Parallel},
}

func adviceTable(raw Samples) report.Table {
	t := report.Table{Title: "What image analyse had expected of the gzip image (s)",
		Header: []string{"advice", "settings", "expected", "measured", "measured by expected"}}
	// The expectation is for the analysed pull; the samples are of others.
	scale := raw.median(original, Defaults, pullSeconds) / raw.Analysed
	for _, c := range checked {
		for _, a := range raw.Advice {
			measured := raw.median(c.image, c.settings, pullSeconds)
			if a.Do != c.do || a.Expected == 0 || math.IsNaN(measured) {
				continue
			}
			t.Rows = append(t.Rows, []string{a.Do, c.settings, cell(scale * a.Expected), cell(measured),
				fmt.Sprintf("%.2f", measured/(scale*a.Expected))})
		}
	}
	return t
}

func otherTable(raw Samples) report.Table {
	t := report.Table{Title: "Another containerd, with its defaults (medians, in seconds)",
		Header: []string{"image", "version", "pull", "downloading", "unpacking"}}
	for _, v := range variants(0) {
		pulls := raw.seconds(v.name, Defaults, true, pullSeconds)
		if len(pulls) == 0 {
			continue
		}
		version := ""
		for _, p := range raw.Pulls {
			if p.Other {
				version = p.Containerd
			}
		}
		t.Rows = append(t.Rows, []string{words(v.name), version, cell(median(pulls)),
			cell(median(raw.seconds(v.name, Defaults, true, fetchSeconds))),
			cell(median(raw.seconds(v.name, Defaults, true, unpackSeconds)))})
	}
	return t
}

func wakeTable(raw Samples) report.Table {
	t := report.Table{Title: "Requests to a sleeping service, to the first byte (s)",
		Header: []string{"wake", "requests", "median", "slowest", "image there after", "registry sent (images)",
			"from peers (MB)"}}
	for _, k := range []struct{ kind, meaning string }{
		{Stock, "first, the image is pulled meanwhile"}, {Prefetch, "first, the image was prefetched"},
		{Lazy, "first, the image is pulled lazily"}, {Warm, "later"},
		{NoPeers, "first in a cluster, another node has the image, no peers"},
		{Peers, "first in a cluster, another node has the image, peers"},
	} {
		times := raw.wakes(k.kind)
		if len(times) == 0 {
			continue
		}
		there := median(report.Collect(raw.Wakes, func(w Wake) (float64, bool) {
			return w.Prefetched, w.Kind == k.kind && w.Prefetched > 0
		}))
		sent, fromPeers := "", ""
		if k.kind == NoPeers || k.kind == Peers {
			of := func(f func(Wake) float64) float64 {
				return median(report.Collect(raw.Wakes, func(w Wake) (float64, bool) { return f(w), w.Kind == k.kind }))
			}
			sent = fmt.Sprintf("%.3f", of(func(w Wake) float64 { return w.OriginRatio }))
			fromPeers = fmt.Sprintf("%.1f", of(func(w Wake) float64 { return w.FromPeers })/1e6)
		}
		t.Rows = append(t.Rows, []string{k.meaning, fmt.Sprint(len(times)), cell(median(times)),
			cell(report.Percentile(times, 100)), cell(there), sent, fromPeers})
	}
	return t
}

const howPhases = `One pull of each image as in the report "pull", which has the method, explained by wangell image
analyse: phases come from containerd's log, its events and a second pass over each layer
(docs/images/analyse.md). A moment in which several layers were in some phase is divided among them, so that
the phases add up to the pull. In the chart each row is a layer, the lowest first.`

// newPhasesReport makes the report of the explained pulls.
func newPhasesReport(raw []Explained) *report.Report {
	r := &report.Report{
		Name: phasesName, Title: "Where the time of a pull goes", Raw: raw, How: howPhases, Answer: phasesAnswer,
		Figure: phasesFigure(raw),
	}
	t := report.Table{Title: "Phases of the whole pull (s)", Header: []string{"image", "settings", "pull"}}
	for _, phase := range pullstat.WholePhases {
		t.Header = append(t.Header, string(phase))
	}
	advice := report.Table{Title: "Advice", Header: []string{"image", "settings", "advice"}}
	for _, e := range raw {
		row := []string{words(e.Image), e.Settings, cell(e.Report.Pull)}
		for _, phase := range pullstat.WholePhases {
			row = append(row, cell(e.Report.Phases[phase]))
		}
		t.Rows = append(t.Rows, row)
		key := e.Image + "_" + e.Settings
		r.Summary = append(r.Summary,
			report.Value{Key: "pull_s_" + key, Value: e.Report.Pull,
				Meaning: fmt.Sprintf("%s, %s: pull (s)", words(e.Image), e.Settings)},
			report.Value{Key: "other_s_" + key, Value: e.Report.Phases[pullstat.Other],
				Meaning: fmt.Sprintf("%s, %s: not explained (s)", words(e.Image), e.Settings)})
		for _, a := range e.Report.Advice {
			advice.Rows = append(advice.Rows, []string{words(e.Image), e.Settings, a.String()})
		}
	}
	r.Tables = []report.Table{t, advice}
	return r
}

// pullAnswer is what the report says first.
var pullAnswer = report.Answer{
	Sentences: []string{
		"A pull takes {pull_s_gzip} s of the image as it comes with containerd's defaults, " +
			"{pull_s_gzip_tuned} s with the recommended settings, and {pull_s_zstd_split_tuned} s if its layers " +
			"are split and compressed by zstd as well.",
		"The first wake takes {first_wake_s_stock} s with a stock pull, {first_wake_s_lazy} s with a lazy " +
			"one, and {first_wake_s_prefetch} s if the image was prefetched.",
	},
	Quoted: []string{
		"pull_s_gzip", "pull_s_gzip_tuned", "pull_s_zstd_split", "pull_s_zstd_split_tuned",
		"pull_s_zstd_split_overlayfs", "speedup_best_tuned", "first_wake_s_stock", "first_wake_s_lazy",
		"first_wake_s_prefetch", "warm_image_wake_s",
	},
}

// phasesAnswer is what the report on phases says first.
var phasesAnswer = report.Answer{
	Sentences: []string{
		"The pull of the image as it comes takes {pull_s_gzip_defaults} s with containerd's defaults, and " +
			"{pull_s_zstd_split_tuned} s in split layers of zstd with the recommended settings.",
		"The phases leave {other_s_gzip_defaults} s and {other_s_zstd_split_tuned} s of that unexplained.",
	},
	Quoted: []string{
		"pull_s_gzip_defaults", "other_s_gzip_defaults", "pull_s_uncompressed_defaults",
		"other_s_uncompressed_defaults", "pull_s_squash_defaults", "other_s_squash_defaults",
		"pull_s_zstd_split_tuned", "other_s_zstd_split_tuned",
	},
}
