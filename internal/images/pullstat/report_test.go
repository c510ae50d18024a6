// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// recordings returns those in testdata: live.Run made them from an image with four layers (gzip, zstd, none, and a fat
// gzip one), through two versions of containerd and in both ways.
func recordings(t *testing.T) map[string]Recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	all := map[string]Recording{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var r Recording
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(f, err)
		}
		all[filepath.Base(f)] = r
	}
	return all
}

func analysed(t *testing.T, r Recording) Report {
	t.Helper()
	report, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func about(a, b float64) bool { return math.Abs(a-b) <= 1e-6 }

func TestPhasesOfAPullAddUp(t *testing.T) {
	for name, r := range recordings(t) {
		report := analysed(t, r)
		sum := 0.0
		for _, s := range report.Phases {
			sum += s
		}
		if !about(sum, report.Pull) || report.Phases[Other] > 0.05*report.Pull {
			t.Errorf("%s: phases %v add up to %v s, of which %v s are not explained, of %v s", name, report.Phases, sum,
				report.Phases[Other], report.Pull)
		}
	}
}

func TestPhasesOfALayerReachFromTheStartToItsEnd(t *testing.T) {
	for name, r := range recordings(t) {
		report := analysed(t, r)
		for i, l := range report.Layers {
			at, sum := 0.0, 0.0
			for _, s := range l.Spans {
				if s.Begin != at || s.End <= s.Begin {
					t.Errorf("%s: layer %d: span %+v after %v s", name, l.Number, s, at)
				}
				at = s.End
			}
			for _, s := range l.Phases {
				sum += s
			}
			end := eventOf(r, EventCommitted, r.Layers[i].ChainID).Time.Sub(r.Begin).Seconds()
			if !about(at, end) || !about(sum, end) {
				t.Errorf("%s: layer %d ends after %v s, its spans %v s, its phases %v s", name, l.Number, end, at, sum)
			}
		}
	}
}

func eventOf(r Recording, kind EventKind, id string) *Event {
	for i := range r.Events {
		if r.Events[i].Kind == kind && r.Events[i].ID == id {
			return &r.Events[i]
		}
	}
	return nil
}

func TestUnpackingTakesWhatContainerdMeasured(t *testing.T) {
	for name, r := range recordings(t) {
		report := analysed(t, r)
		for i, l := range report.Layers {
			measured := eventOf(r, EventApplied, l.Digest).Took.Seconds()
			got := l.Phases[Decompress] + l.Phases[Hash] + l.Phases[Apply]
			if math.Abs(got-measured) > 1e-3 {
				t.Errorf("%s: layer %d: %v s of unpacking, containerd measured %v s", name, l.Number, got, measured)
			}
			stage := r.Stages[i]
			want := float64(stage.Hash) / float64(stage.total())
			if share := l.Phases[Hash] / got; math.Abs(share-want) > 1e-6 {
				t.Errorf("%s: layer %d: hashing is %v of unpacking, %v in the second pass", name, l.Number, share, want)
			}
			if l.Unpacked != stage.Unpacked || l.Files != stage.Files || l.Packed != r.Layers[i].Packed {
				t.Errorf("%s: layer %d: %+v", name, l.Number, l)
			}
		}
	}
}

func TestAnEventThatIsMissingIsNamed(t *testing.T) {
	for name, r := range recordings(t) {
		for _, kind := range []EventKind{EventFetch, EventStored, EventPrepared, EventApplied, EventCommitted} {
			cut := r
			cut.Events = slices.DeleteFunc(slices.Clone(r.Events), func(e Event) bool { return e.Kind == kind })
			_, err := Analyse(cut)
			if err == nil || !strings.Contains(err.Error(), string(kind)) || !strings.Contains(err.Error(), "layer 1") {
				t.Errorf("%s without %q: %v", name, kind, err)
			}
		}
		// A small blob is committed before anyone has looked at it.
		cut := r
		cut.Events = slices.DeleteFunc(slices.Clone(r.Events), func(e Event) bool { return e.Kind == EventReceived })
		if _, err := Analyse(cut); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Analyse(Recording{}); err == nil {
		t.Error("an image without layers is analysed")
	}
}

func TestABlobOfTwoLayersIsFetchedOnceAndUnpackedTwice(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	const second = time.Second
	r := Recording{
		Begin: begin, End: at(8), Cores: 1,
		Layers: []Layer{{Digest: "b", ChainID: "c1", Packed: 1}, {Digest: "b", ChainID: "c2", Packed: 1}},
		Stages: []Stage{{Unpacked: 2, Files: 1, Apply: second}, {Unpacked: 2, Files: 1, Apply: second}},
		Events: []Event{
			{at(1), EventFetch, "b", 0}, {at(2), EventStored, "b", 0},
			{at(2), EventPrepared, "c1", 0}, {at(4), EventApplied, "b", 2 * second}, {at(5), EventCommitted, "c1", 0},
			{at(5), EventPrepared, "c2", 0}, {at(7), EventApplied, "b", 2 * second}, {at(8), EventCommitted, "c2", 0},
		},
	}
	report := analysed(t, r)
	for i, want := range []map[Phase]float64{
		{Wait: 1, Fetch: 1, Apply: 2, Fsync: 1}, {Wait: 4, Fetch: 1, Apply: 2, Fsync: 1},
	} {
		for _, p := range LayerPhases {
			if got := report.Layers[i].Phases[p]; !about(got, want[p]) {
				t.Errorf("layer %d: %v s of %s, want %v", i+1, got, p, want[p])
			}
		}
	}
}

func TestALayerUnpackedInParallelWaitsForTheCommitBelow(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	r := Recording{
		Begin: begin, End: at(8), Cores: 2, Unpackers: 2,
		Layers: []Layer{{Digest: "b1", ChainID: "c1", Packed: 1}, {Digest: "b2", ChainID: "c2", Packed: 1}},
		Stages: []Stage{{Unpacked: 2, Apply: 1}, {Unpacked: 2, Apply: 1}},
		Events: []Event{
			{at(0), EventFetch, "b1", 0}, {at(1), EventStored, "b1", 0}, {at(0), EventFetch, "b2", 0},
			{at(1), EventStored, "b2", 0}, {at(0), EventPrepared, "c1", 0}, {at(0), EventPrepared, "c2", 0},
			{at(6), EventApplied, "b1", 5 * time.Second}, {at(7), EventCommitted, "c1", 0},
			{at(3), EventApplied, "b2", 2 * time.Second}, {at(8), EventCommitted, "c2", 0},
		},
	}
	want := map[Phase]float64{Fetch: 1, Apply: 2, Wait: 4, Fsync: 1}
	for _, p := range LayerPhases {
		if got := analysed(t, r).Layers[1].Phases[p]; !about(got, want[p]) {
			t.Errorf("%v s of %s, want %v", got, p, want[p])
		}
	}
}

func TestAMomentIsDividedAmongWhatRuns(t *testing.T) {
	layers := []LayerReport{
		{Spans: []Span{{Wait, 0, 1}, {Fetch, 1, 3}, {Apply, 3, 5}}},
		{Spans: []Span{{Wait, 0, 2}, {Fetch, 2, 3}, {Wait, 3, 6}, {Apply, 6, 8}}},
	}
	phases, overlap := divide(layers, 10)
	want := map[Phase]float64{Resolve: 1, Fetch: 2, Apply: 4, Other: 1, Finish: 2}
	for _, p := range WholePhases {
		if !about(phases[p], want[p]) {
			t.Errorf("%s: %v s, want %v", p, phases[p], want[p])
		}
	}
	if want := 7.0 / 6; !about(overlap, want) {
		t.Errorf("overlap %v, want %v", overlap, want)
	}
}
