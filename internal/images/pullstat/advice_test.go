// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// reportOf returns a report of layers that were all downloaded in the first second and then unpacked one after the
// other: at each step, decompress, hash and apply.
func reportOf(cores int, layers ...LayerReport) Report {
	r := Report{Cores: cores, Unpackers: 1, Phases: map[Phase]float64{}}
	at := 1.0
	for i, l := range layers {
		l.Number = i + 1
		steps := l.Phases
		l.Phases = map[Phase]float64{}
		l.Spans = []Span{{Fetch, 0, 1}}
		if at > 1 {
			l.Spans = append(l.Spans, Span{Wait, 1, at})
		}
		for _, p := range []Phase{Prepare, Decompress, Hash, Apply, Fsync} {
			if steps[p] > 0 {
				l.Spans = append(l.Spans, Span{p, at, at + steps[p]})
				at += steps[p]
			}
		}
		for _, s := range l.Spans {
			l.Phases[s.Phase] += s.End - s.Begin
		}
		r.Packed, r.Unpacked, r.Files = r.Packed+l.Packed, r.Unpacked+l.Unpacked, r.Files+l.Files
		r.Layers = append(r.Layers, l)
	}
	r.Pull = at
	r.Phases, r.Overlap = divide(r.Layers, r.Pull)
	return r
}

func gzipLayer(mega int64, seconds float64) LayerReport {
	return LayerReport{Compression: "gzip", Packed: mega << 20, Unpacked: 3 * mega << 20,
		Phases: map[Phase]float64{Decompress: 0.5 * seconds, Hash: 0.1 * seconds, Apply: 0.4 * seconds}}
}

func adviceFor(t *testing.T, r Report, trial *Trial, do string) Advice {
	t.Helper()
	all, model := advise(r, trial, nil)
	if math.Abs(model-r.Pull) > 0.01*r.Pull {
		t.Errorf("the model takes %v s, the pull took %v s", model, r.Pull)
	}
	i := slices.IndexFunc(all, func(a Advice) bool { return a.Do == do })
	if i < 0 {
		t.Fatalf("no advice to %s: %v", do, all)
	}
	return all[i]
}

func gives(r Report, trial *Trial, do string) bool {
	all, _ := advise(r, trial, nil)
	return slices.ContainsFunc(all, func(a Advice) bool { return a.Do == do })
}

func TestAFatLayerIsToBeSplit(t *testing.T) {
	r := reportOf(2, gzipLayer(100, 2), gzipLayer(400, 8))
	a := adviceFor(t, r, nil, "split")
	// Of 10 s of unpacking, two cores do 5 at best, after 1 s of download.
	if a.Expected < 5.5 || a.Expected > 6.5 || !about(a.Expected, r.Pull*(1-a.Gain)) {
		t.Errorf("expected %v s of %v s, gain %v", a.Expected, r.Pull, a.Gain)
	}
	for _, want := range []string{"layer 2 holds 80", "pieces of 64 MB", "unpack 2 layers at once", "about −4"} {
		if !strings.Contains(a.String(), want) {
			t.Errorf("%q lacks %q", a, want)
		}
	}
	if gives(reportOf(1, gzipLayer(100, 2), gzipLayer(400, 8)), nil, "split") {
		t.Error("to split a layer is advised on one core")
	}
}

func TestEvenLayersAreToBeUnpackedInParallel(t *testing.T) {
	r := reportOf(2, gzipLayer(50, 2), gzipLayer(50, 2), gzipLayer(50, 2), gzipLayer(50, 2))
	if a := adviceFor(t, r, nil, "parallel"); math.Abs(a.Expected-5) > 0.1 {
		t.Errorf("expected %v s: %s", a.Expected, a)
	}
	if gives(r, nil, "split") {
		t.Error("to split even layers is advised")
	}
}

func TestErofsGainsWhatItsTrialSaved(t *testing.T) {
	r := reportOf(1, gzipLayer(100, 10), gzipLayer(100, 10))
	all, _ := advise(r, nil, &ErofsTrial{Layer: 1, Files: 4 * time.Second, Image: time.Second})
	i := slices.IndexFunc(all, func(a Advice) bool { return a.Do == "erofs" })
	if i < 0 {
		t.Fatalf("no advice: %v", all)
	}
	// Of 20 s of unpacking, 8 are writing files, which become 2.
	if a := all[i]; !about(r.Pull-a.Expected, 6) || !strings.Contains(a.Text, "4.0 times as fast") ||
		!strings.Contains(a.Text, "layer 2") {
		t.Errorf("%+v of %v s", a, r.Pull)
	}
	if all, _ := advise(r, nil, &ErofsTrial{Files: time.Second, Image: time.Second}); slices.ContainsFunc(all,
		func(a Advice) bool { return a.Do == "erofs" }) {
		t.Errorf("advice that gains nothing: %v", all)
	}
}

func TestZstdGainsWhatItsTrialSaved(t *testing.T) {
	trial := &Trial{Unpacked: 100, Gzip: 50, Zstd: 45, GzipTime: 4 * time.Second, ZstdTime: time.Second}
	r := reportOf(1, gzipLayer(100, 8))
	// 4 s of decompression become 1 s, and 1 s of download 0.9 s.
	if a := adviceFor(t, r, trial, "zstd"); !about(a.Expected, r.Pull-3.1) {
		t.Errorf("expected %v s of %v s: %s", a.Expected, r.Pull, a)
	}
	trial.ZstdTime = trial.GzipTime
	trial.Zstd = trial.Gzip
	if gives(r, trial, "zstd") {
		t.Error("zstd is advised although its trial saved nothing")
	}
	zstd := gzipLayer(100, 8)
	zstd.Compression = "zstd"
	if gives(reportOf(1, zstd), &Trial{Unpacked: 2, Gzip: 2, Zstd: 1, GzipTime: 4, ZstdTime: 1}, "zstd") {
		t.Error("zstd is advised for an image without gzip layers")
	}
}

func TestSmallLayersAreToBeJoined(t *testing.T) {
	var small []LayerReport
	for range 20 {
		small = append(small, LayerReport{Compression: "gzip", Packed: 1000,
			Phases: map[Phase]float64{Prepare: 0.1, Decompress: 0.05, Apply: 0.05, Fsync: 0.1}})
	}
	r := reportOf(1, small...)
	if a := adviceFor(t, r, nil, "join"); math.Abs(a.Expected-(1+20*0.1+0.2)) > 0.1 {
		t.Errorf("expected %v s of %v s: %s", a.Expected, r.Pull, a)
	}
}

func TestUncompressedLayersCanBeBoundByHashing(t *testing.T) {
	raw := LayerReport{Compression: "none", Packed: 300 << 20, Unpacked: 300 << 20, FetchHash: 0.9,
		Phases: map[Phase]float64{Decompress: 0.1, Hash: 0.9, Apply: 0.5}}
	a := adviceFor(t, reportOf(1, raw), nil, "hash")
	for _, want := range []string{"SHA-256", "60 %", "350 MB/s"} {
		if !strings.Contains(a.Text, want) {
			t.Errorf("%q lacks %q", a.Text, want)
		}
	}
	raw.Phases[Apply] = 5
	if gives(reportOf(1, raw), nil, "hash") {
		t.Error("hashing is blamed for what applying takes")
	}
}

func TestOwnDecompressorIsNamedUnlessAHelperIsThere(t *testing.T) {
	r := reportOf(1, gzipLayer(100, 20))
	if !gives(r, nil, "decompressor") {
		t.Error("igzip is not named")
	}
	r.GzipHelper = "unpigz"
	if gives(r, nil, "decompressor") {
		t.Error("igzip is named although containerd used unpigz")
	}
}

func TestWritingFilesIsNamedIfItTakesMost(t *testing.T) {
	l := gzipLayer(100, 1)
	l.Files, l.Phases[Apply] = 1000, 5
	r := reportOf(2, l)
	if a := adviceFor(t, r, nil, "disk"); !strings.Contains(a.Text, "76 %") || !strings.Contains(a.Text, "200 files/s") {
		t.Errorf("got %s", a)
	}
}

func TestASlowRegistryIsNamed(t *testing.T) {
	if !gives(reportOf(1, gzipLayer(1, 0.2)), nil, "network") {
		t.Error("the network is not named")
	}
}

func TestAGoodImageGetsNoAdvice(t *testing.T) {
	zstd := LayerReport{Compression: "zstd", Packed: 50 << 20, Unpacked: 100 << 20,
		Phases: map[Phase]float64{Decompress: 1, Hash: 0.2, Apply: 1}}
	if all, _ := advise(reportOf(1, zstd), nil, nil); len(all) != 1 || all[0].Do != "none" {
		t.Errorf("got %v", all)
	}
}

func TestTheModelIsAboutAsLongAsRealPulls(t *testing.T) {
	for name, r := range recordings(t) {
		if report := analysed(t, r); math.Abs(report.Model-report.Pull) > 0.05*report.Pull {
			t.Errorf("%s: the model takes %v s, the pull took %v s", name, report.Model, report.Pull)
		}
	}
}
