// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Analyse explains a recording. It fails if containerd did not report the unpacking of a layer.
func Analyse(r Recording) (Report, error) {
	if len(r.Layers) == 0 {
		return Report{}, errors.New("the image has no layers")
	}
	if len(r.Stages) != len(r.Layers) {
		return Report{}, fmt.Errorf("%d layers, but a second pass over %d", len(r.Layers), len(r.Stages))
	}
	report := Report{
		Image: r.Image, Via: r.Via, Containerd: r.Containerd, Cores: r.Cores,
		Unpackers: max(r.Unpackers, 1), Snapshotter: r.Snapshotter, GzipHelper: r.GzipHelper,
		Pull: r.End.Sub(r.Begin).Seconds(),
	}
	times, err := layerTimes(r)
	if err != nil {
		return Report{}, err
	}
	hashRate := hashRate(r.Stages)
	for i, l := range r.Layers {
		stage := r.Stages[i]
		layer := LayerReport{
			Number: i + 1, Digest: l.Digest, Compression: stage.Compression,
			Packed: l.Packed, Unpacked: stage.Unpacked, Files: stage.Files,
			Spans: layerSpans(times[i], stage),
		}
		layer.Phases = map[Phase]float64{}
		for _, s := range layer.Spans {
			layer.Phases[s.Phase] += s.End - s.Begin
		}
		if hashRate > 0 {
			layer.FetchHash = min(float64(l.Packed)/hashRate, layer.Phases[Fetch])
		}
		if t := times[i].applied - times[i].applying; t > 0 {
			layer.SecondPass = stage.total().Seconds() / t
		}
		report.Packed += l.Packed
		report.Unpacked += stage.Unpacked
		report.Files += stage.Files
		report.Layers = append(report.Layers, layer)
	}
	report.Phases, report.Overlap = divide(report.Layers, report.Pull)
	report.Advice, report.Model = advise(report, r.Trial, r.Erofs)
	return report, nil
}

// hashRate returns bytes per second.
func hashRate(stages []Stage) float64 {
	var bytes int64
	var took time.Duration
	for _, s := range stages {
		bytes += s.Unpacked
		took += s.Hash
	}
	if took <= 0 {
		return 0
	}
	return float64(bytes) / took.Seconds()
}

// times of a layer, in seconds since the start of the pull.
type times struct {
	fetching, received, stored float64
	preparing, prepared        float64
	applying, applied          float64
	committing, committed      float64
}

// layerTimes finds the times of each layer among the events.
func layerTimes(r Recording) ([]times, error) {
	events := map[string][]Event{}
	for _, e := range slices.SortedFunc(slices.Values(r.Events), func(a, b Event) int { return a.Time.Compare(b.Time) }) {
		key := string(e.Kind) + " " + e.ID
		events[key] = append(events[key], e)
	}
	since := func(t time.Time) float64 { return max(t.Sub(r.Begin).Seconds(), 0) }
	first := func(kind EventKind, id string) (float64, bool) {
		if found := events[string(kind)+" "+id]; len(found) > 0 {
			return since(found[0].Time), true
		}
		return 0, false
	}
	var all []times
	earlier := map[string]int{} // layers with the same blob so far
	for i, l := range r.Layers {
		var t times
		missing := func(kind EventKind) error {
			return fmt.Errorf("layer %d (%s): containerd %s did not report %q: it has no analysable pull", i+1, l.Digest,
				r.Containerd, kind)
		}
		var ok bool
		if t.committed, ok = first(EventCommitted, l.ChainID); !ok {
			return nil, missing(EventCommitted)
		}
		// A blob that several layers share is downloaded once and unpacked for each.
		applied := events[string(EventApplied)+" "+l.Digest]
		n := earlier[l.Digest]
		if earlier[l.Digest]++; n >= len(applied) {
			return nil, missing(EventApplied)
		}
		t.applied = min(since(applied[n].Time), t.committed)
		t.applying = max(t.applied-applied[n].Took.Seconds(), 0)
		if t.stored, ok = first(EventStored, l.Digest); !ok {
			return nil, missing(EventStored)
		}
		t.stored = min(t.stored, t.applying)
		if t.fetching, ok = first(EventFetch, l.Digest); !ok {
			return nil, missing(EventFetch)
		}
		t.fetching = min(t.fetching, t.stored)
		if t.received, ok = first(EventReceived, l.Digest); !ok {
			t.received = t.stored
		}
		t.received = min(max(t.received, t.fetching), t.stored)
		if t.prepared, ok = first(EventPrepared, l.ChainID); !ok {
			return nil, missing(EventPrepared)
		}
		// A snapshot is prepared once the one below is committed, unless containerd unpacks in parallel: then the start of
		// its preparation is not known. Commits are always in order.
		t.prepared, t.committing = min(t.prepared, t.applying), t.applied
		t.preparing = t.prepared
		if i > 0 {
			t.preparing = min(t.prepared, all[i-1].committed)
			t.committing = min(max(t.applied, all[i-1].committed), t.committed)
		}
		all = append(all, t)
	}
	return all, nil
}

// layerSpans returns the spans of a layer. They begin at 0 and leave no gap: what is not observed is Wait.
func layerSpans(t times, stage Stage) []Span {
	unpack := t.applied - t.applying
	share := func(d time.Duration) float64 {
		if stage.total() <= 0 {
			return 0
		}
		return unpack * float64(d) / float64(stage.total())
	}
	decompressed := t.applying + share(stage.Decompress)
	hashed := decompressed + share(stage.Hash)
	seen := []Span{
		{Fetch, t.fetching, t.received},
		{Fsync, t.received, t.stored},
		{Prepare, t.preparing, t.prepared},
		{Decompress, t.applying, decompressed},
		{Hash, decompressed, hashed},
		{Apply, hashed, t.applied},
		{Fsync, t.committing, t.committed},
	}
	// A snapshot may be prepared during the download of its layer: what counts then is the download.
	slices.SortStableFunc(seen, func(a, b Span) int { return cmp.Compare(a.Begin, b.Begin) })
	var spans []Span
	at := 0.0
	for i, s := range seen {
		if s.Phase == Prepare {
			for _, o := range seen[i+1:] {
				s.End = min(s.End, max(o.Begin, s.Begin))
			}
		}
		s.Begin = max(s.Begin, at)
		if s.End <= s.Begin {
			continue
		}
		if s.Begin > at {
			spans = append(spans, Span{Wait, at, s.Begin})
		}
		spans = append(spans, s)
		at = s.End
	}
	return spans
}
