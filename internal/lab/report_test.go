// SPDX-License-Identifier: Apache-2.0

package lab

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

	"wangell.loutres.me/internal/lifecycle"
)

// invented is made up, to see how reports are written.
func invented() ColdRaw {
	var raw ColdRaw
	for i := range 9 {
		d := float64(i * i)
		raw.Floor = append(raw.Floor, FloorSample{Phases: map[string]float64{"image": 0.1, "sandbox": 0.3, "created": 30 + d/9, "started": 41 + d}, Connected: 39 + d, FirstByte: 40 + d})
		raw.Cold = append(raw.Cold, ColdSample{Connected: 42 + d, FirstByte: 43 + d, Done: 43.5 + d, Wake: &lifecycle.Waterfall{Phases: []lifecycle.Phase{
			{Name: lifecycle.PhaseSYNSeen}, {Name: lifecycle.PhaseTold, At: 80 * time.Microsecond, Took: 80 * time.Microsecond},
			{Name: lifecycle.PhaseCreated, At: 32 * time.Millisecond, Took: 31920 * time.Microsecond},
			{Name: lifecycle.PhaseListening, At: 42 * time.Millisecond, Took: 10 * time.Millisecond},
			{Name: lifecycle.PhaseStarted, At: 47 * time.Millisecond, Took: 5 * time.Millisecond}}}})
	}
	raw.Cold = append(raw.Cold, ColdSample{Error: "i/o timeout"})
	return raw
}

func TestColdReport(t *testing.T) {
	r := coldReport(invented(), 2)
	for key, want := range map[string]float64{"requests": 10, "lost": 1, "syn_retransmits": 2, "median_ms": 59, "floor_median_ms": 56,
		"overhead_median_ms": 3, "mean_ms": 43 + 204.0/9, "p99_ms": 43 + 49 + 0.92*15} {
		if got := r.Summary.Get(key); !near(got, want) {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	var names []string
	for _, p := range coldPhases(invented()) {
		names = append(names, p.name)
		if p.name == "first-byte" && (p.coldEnd >= 0 || !near(p.floorBegin, 30+16.0/9) || !near(p.floorEnd, 56)) {
			t.Errorf("first-byte: %+v", p)
		}
		if p.name == "created" && (!near(p.coldEnd, 32) || !near(p.coldTook, 31.92) || !near(p.floorBegin, 0.3)) {
			t.Errorf("created: %+v", p)
		}
	}
	if got := strings.Join(names, " "); got != "told image sandbox created listening started first-byte" {
		t.Errorf("phases in order: %s", got)
	}
}

func TestWriteReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	r := coldReport(invented(), 0)
	r.Params, r.Versions = map[string]any{"a|b": 1}, map[string]string{"kernel": "6"}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(ending string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "cold"+ending))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var back struct {
		Name    string
		Summary map[string]*float64
		Raw     ColdRaw
		Params  map[string]any
	}
	if err := json.Unmarshal(read(".json"), &back); err != nil {
		t.Fatal(err)
	}
	if back.Name != "cold" || back.Summary["median_ms"] == nil || *back.Summary["median_ms"] != 59 || len(back.Raw.Floor) != 9 || back.Params["a|b"] != 1.0 {
		t.Errorf("JSON: %+v", back)
	}
	md := string(read(".md"))
	for _, want := range []string{"# Cold requests", "|  59.00 ms |", "`overhead_median_ms` |", "![Cold requests: overhead over the floor](cold.svg)",
		"## How it was measured", `a\|b`, "| created "} {
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
		t.Errorf("SVG of %d bytes, or without a font that everybody has", len(svg))
	}
	if err := (&Report{Name: "x"}).Write(dir); err == nil {
		t.Error("a report without a figure was written")
	}
}

func TestSummaryJSON(t *testing.T) {
	got, err := json.Marshal(Summary{{"a_ms", 1.23456, ""}, {"none_ms", math.NaN(), ""}, {"requests", 30, ""}})
	if err != nil || string(got) != `{"a_ms":1.235,"none_ms":null,"requests":30}` {
		t.Errorf("%s, %v", got, err)
	}
	// Not measured at all: a report of nothing can be written.
	if err := coldReport(ColdRaw{}, 0).Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}
