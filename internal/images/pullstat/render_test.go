// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestACharacterShowsWhatTookMostOfItsTime(t *testing.T) {
	spans := []Span{{Wait, 0, 2}, {Fetch, 2, 5.4}, {Fsync, 5.4, 5.9}, {Apply, 5.9, 8}}
	if got, want := chartLine(spans, 10, 10), "··fffsaa"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTextFitsIntoTheTerminal(t *testing.T) {
	for name, r := range recordings(t) {
		report := analysed(t, r)
		var b strings.Builder
		if err := WriteText(&b, report, 110); err != nil {
			t.Fatal(err)
		}
		_, below, found := strings.Cut(b.String(), "0 s")
		if !found {
			t.Fatalf("%s: no chart:\n%s", name, b.String())
		}
		for line := range strings.Lines(below) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 110 {
				t.Errorf("%s: %d characters: %q", name, n, line)
			}
		}
		for _, want := range []string{"LAYER", "DECOMPRESS", "whole", "layer 4 holds"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q:\n%s", name, want, b.String())
			}
		}
	}
}

func TestSVGHasABarForEachSpanAndEscapesNames(t *testing.T) {
	for name, r := range recordings(t) {
		report := analysed(t, r)
		report.Image = `a<b>&"c"`
		var b strings.Builder
		if err := WriteSVG(&b, report); err != nil {
			t.Fatal(err)
		}
		spans := len(WholePhases)
		for _, l := range report.Layers {
			spans += len(l.Spans)
		}
		bars, texts := 0, ""
		d := xml.NewDecoder(strings.NewReader(b.String()))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch e := token.(type) {
			case xml.StartElement:
				if e.Name.Local == "title" {
					bars++
				}
				for _, a := range e.Attr {
					if n, err := strconv.ParseFloat(a.Value, 64); a.Name.Local == "width" && (err != nil || n < 0 || n > svgWidth) {
						t.Errorf("%s: width %q", name, a.Value)
					}
				}
			case xml.CharData:
				texts += string(e)
			}
		}
		if bars != spans || !strings.Contains(texts, report.Image) {
			t.Errorf("%s: %d bars, want %d; texts %q", name, bars, spans, texts)
		}
	}
}

func TestTicksAreRoundAndNotTooMany(t *testing.T) {
	for length, want := range map[float64]float64{0: 1, 0.5: 0.1, 5.4: 1, 9.9: 2, 24: 5, 172: 20, 400: 100} {
		if got := tickStep(length); !about(got, want) {
			t.Errorf("%v s: a tick each %v s, want %v", length, got, want)
		}
	}
}
