// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"wangell.loutres.me/internal/base/monotime"
)

var update = flag.Bool("update", false, "write the golden files")

// waterfallOf makes a waterfall from the ends of its phases, in microseconds after the SYN.
func waterfallOf(us map[PhaseName]int64) Waterfall {
	const syn = monotime.Time(1e12)
	s := &timeline{number: 3, result: ResultWarm, parked: 2, released: 2}
	for name, at := range us {
		s.mark(name, syn.Add(time.Duration(at)*time.Microsecond))
	}
	w := s.waterfall("default/redis")
	w.Start = time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC)
	return w
}

func whole() Waterfall {
	return waterfallOf(map[PhaseName]int64{
		PhaseSYNSeen: 0, PhaseTold: 41, PhaseHandled: 97, PhaseImage: 640, PhaseSandbox: 31204,
		PhaseCreated: 52871, PhaseStarted: 60412, PhaseListening: 78230, PhaseReleased: 78301,
		PhaseFirstSYNACK: 78344, PhaseFirstByte: 83402,
	})
}

func TestDrawMatchesGoldenFiles(t *testing.T) {
	failed := waterfallOf(map[PhaseName]int64{PhaseSYNSeen: 0, PhaseTold: 38, PhaseHandled: 80, PhaseImage: 2_400_000})
	failed.Result, failed.Released = ResultFailed, 0
	failed.Reason = "process exited with code 1: cannot open /etc/redis.conf:\nno such file"
	tiny := waterfallOf(map[PhaseName]int64{PhaseSYNSeen: 0})
	cases := map[string]struct {
		w     Waterfall
		width int
	}{
		"whole-80": {whole(), 80}, "whole-120": {whole(), 120}, "whole-narrow": {whole(), 20},
		"failed-80": {failed, 80}, "only-syn-80": {tiny, 80},
		"empty": {Waterfall{Service: "a/b", Number: 1, Result: ResultRunning}, 80},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := Draw(&got, c.w, c.width); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got.String(), want)
			}
		})
	}
}

func TestDrawStaysWithinTheWidth(t *testing.T) {
	for width := 60; width < 200; width += 7 {
		for _, total := range []int64{0, 1, 7, 999, 83402, 60_000_000, 3_600_000_000} {
			w := waterfallOf(map[PhaseName]int64{
				PhaseSYNSeen: 0, PhaseTold: total / 1000, PhaseSandbox: total / 3, PhaseStarted: total / 2, PhaseListening: total})
			w.Start, w.Parked, w.Released = time.Time{}, 0, 0
			var b bytes.Buffer
			if err := Draw(&b, w, width); err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(b.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("total %d µs: %d columns, asked for %d: %q", total, n, width, line)
				}
			}
		}
	}
}

func TestWaterfallSurvivesJSON(t *testing.T) {
	b, err := json.Marshal(waterfallOf(map[PhaseName]int64{PhaseSYNSeen: 0, PhaseTold: 41, PhaseListening: 78230}))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"service":"default/redis","number":3,"start":"2026-02-03T04:05:06.789Z","result":"warm",` +
		`"parked":2,"released":2,` +
		`"phases":[{"phase":"syn-seen","at_us":0,"took_us":0},{"phase":"told","at_us":41,"took_us":41},` +
		`{"phase":"listening","at_us":78230,"took_us":78189}]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back Waterfall
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if again, _ := json.Marshal(back); !bytes.Equal(again, b) {
		t.Errorf("read and written again: %s", again)
	}
}

func TestWaterfallOrdersPhasesByTime(t *testing.T) {
	// The runtime may report that the process runs after the kernel has reported that it listens.
	w := waterfallOf(map[PhaseName]int64{PhaseSYNSeen: 0, PhaseListening: 70, PhaseStarted: 50, PhaseTold: -3})
	var got []string
	for _, p := range w.Phases {
		got = append(got, fmt.Sprintf("%s %d+%d", p.Name, p.At.Microseconds(), p.Took.Microseconds()))
	}
	if want := "syn-seen 0+0, told 0+0, started 50+50, listening 70+20"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestRingKeepsTheLastWakes(t *testing.T) {
	var r Ring
	for i := range uint64(RingSize + 20) {
		r.Put(Record{First: true, Waterfall: Waterfall{Service: fmt.Sprintf("ns/s%d", i%2), Number: i,
			Result: ResultRunning}})
	}
	if n := len(r.Wakes("")); n != RingSize {
		t.Errorf("keeps %d wakes, want %d", n, RingSize)
	}
	if n := len(r.Wakes("ns/s1")); n != RingSize/2 {
		t.Errorf("keeps %d wakes of one service, want %d", n, RingSize/2)
	}
	if first := r.Wakes("")[0].Number; first != 20 {
		t.Errorf("the oldest kept is %d, want 20", first)
	}
	r.Put(Record{Waterfall: Waterfall{Service: "ns/s1", Number: 21, Result: ResultWarm}})
	r.Put(Record{Waterfall: Waterfall{Service: "ns/s1", Number: 1, Result: ResultWarm}}) // no longer kept
	ws := r.Wakes("")
	if len(ws) != RingSize || ws[1].Result != ResultWarm || ws[0].Result != ResultRunning {
		t.Errorf("an update changed more or less than its wake: %d wakes, %v", len(ws), ws[:2])
	}
}
