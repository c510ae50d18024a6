// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/report"
)

// invented are samples with round numbers.
func invented() Samples {
	var raw Samples
	for i := range 9 {
		d := float64(i * i)
		raw.Floor = append(raw.Floor, onenode.FloorSample{
			Phases:    map[string]float64{"image": 0.1, "sandbox": 0.3, "created": 30 + d/9, "started": 41 + d},
			Connected: 39 + d, FirstByte: 40 + d,
		})
		wake := &lifecycle.Waterfall{Phases: []lifecycle.Phase{
			{Name: lifecycle.PhaseSYNSeen}, {Name: lifecycle.PhaseTold, At: 80 * time.Microsecond, Took: 80 * time.Microsecond},
			{Name: lifecycle.PhaseCreated, At: 32 * time.Millisecond, Took: 31920 * time.Microsecond},
			{Name: lifecycle.PhaseListening, At: 42 * time.Millisecond, Took: 10 * time.Millisecond},
			{Name: lifecycle.PhaseStarted, At: 47 * time.Millisecond, Took: 5 * time.Millisecond},
		}}
		raw.Cold = append(raw.Cold, Sample{Connected: 42 + d, FirstByte: 43 + d, Done: 43.5 + d, Wake: wake})
	}
	raw.Cold = append(raw.Cold, Sample{Error: "i/o timeout"})
	return raw
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestReportSummarizesSamples(t *testing.T) {
	r := newReport(invented(), 2)
	for key, want := range map[string]float64{"requests": 10, "lost": 1, "syn_retransmits": 2, "median_ms": 59,
		"floor_median_ms": 56, "overhead_median_ms": 3, "mean_ms": 43 + 204.0/9, "p99_ms": 43 + 49 + 0.92*15} {
		if got := r.Summary.Get(key); !near(got, want) {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	var names []string
	for _, p := range phasesOf(invented()) {
		names = append(names, p.Name)
		if p.Name == "first-byte" && (p.WakeEnd >= 0 || !near(p.FloorBegin, 30+16.0/9) || !near(p.FloorEnd, 56)) {
			t.Errorf("first-byte: %+v", p)
		}
		if p.Name == "created" && (!near(p.WakeEnd, 32) || !near(p.WakeTook, 31.92) || !near(p.FloorBegin, 0.3)) {
			t.Errorf("created: %+v", p)
		}
	}
	if got := strings.Join(names, " "); got != "told image sandbox created listening started first-byte" {
		t.Errorf("phases in order: %s", got)
	}
}

func TestReportIsWrittenInAllFormats(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	r := newReport(invented(), 0)
	r.Params, r.Versions = map[string]any{"a|b": 1}, map[string]string{"kernel": "6"}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(extension string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "cold"+extension))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var back struct {
		Name    string
		Summary map[string]*float64
		Raw     Samples
		Params  map[string]any
	}
	if err := json.Unmarshal(read(".json"), &back); err != nil {
		t.Fatal(err)
	}
	if median := back.Summary["median_ms"]; back.Name != "cold" || median == nil || *median != 59 ||
		len(back.Raw.Floor) != 9 || back.Params["a|b"] != 1.0 {
		t.Errorf("JSON: %+v", back)
	}
	md := string(read(".md"))
	for _, want := range []string{"# Cold requests", "59.00 ms |", "`overhead_median_ms` |", "## How it was measured",
		"| `overhead_low_ms`, `overhead_high_ms` |", "![Cold requests: overhead over the floor](cold.svg)", `a\|b`,
		"| created "} {
		if !strings.Contains(md, want) {
			t.Errorf("no %q in:\n%s", want, md)
		}
	}
	picture, err := png.Decode(bytes.NewReader(read(".png")))
	if err != nil || picture.Bounds().Dx() < 1000 {
		t.Errorf("PNG: %v", err)
	}
	svg := read(".svg")
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Contains(svg, []byte("sans-serif")) || len(svg) > 200<<10 {
		t.Errorf("the SVG has %d bytes, or no fallback font", len(svg))
	}
}

func TestReportWithoutSamplesIsWritten(t *testing.T) {
	if err := newReport(Samples{}, 0).Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestSavedReportRendersTheSame(t *testing.T) {
	r := newReport(invented(), 2)
	r.Time, r.Params, r.Versions = time.Unix(1e9, 0).UTC(), map[string]any{"a": "b"}, map[string]string{"kernel": "6"}
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	saved, err := report.Load(filepath.Join(dir, "cold.json"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := render(saved)
	if err != nil || !bytes.Equal(again.Markdown(), r.Markdown()) {
		t.Errorf("%v; rendered again:\n%s\nwant:\n%s", err, again.Markdown(), r.Markdown())
	}
}
