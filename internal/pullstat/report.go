// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase is a part of a pull.
type Phase string

// Phases. Resolve, Finish and Other belong to the pull as a whole, Wait to layers only.
const (
	// Resolve is from the start of the pull to the first layer's download: names, the manifest, the configuration.
	Resolve Phase = "resolve"
	// Fetch is the download of a blob, with its writing to the content store and the SHA-256 of what was downloaded.
	Fetch Phase = "fetch"
	// Wait is the time in which nothing is done for a layer: for its turn to be downloaded or unpacked.
	Wait Phase = "wait"
	// Prepare is the snapshotter's preparation of a snapshot.
	Prepare Phase = "prepare"
	// Decompress, Hash and Apply are the stages of unpacking: containerd measures their sum, the second pass its parts.
	Decompress Phase = "decompress"
	// Hash is the SHA-256 of the decompressed layer.
	Hash Phase = "hash"
	// Apply is the creation of the layer's files.
	Apply Phase = "apply"
	// Fsync is the commit of a blob to the content store and of a snapshot, both of which wait for the disk.
	Fsync Phase = "fsync"
	// Finish is from the last snapshot's commit to the end of the pull: the image's record, leases.
	Finish Phase = "finish"
	// Other is when no phase was observed.
	Other Phase = "other"
)

// LayerPhases are the phases that a layer can have, in the order in which they are shown.
var LayerPhases = []Phase{Fetch, Wait, Prepare, Decompress, Hash, Apply, Fsync}

// WholePhases are the phases that the pull as a whole can have, in the order in which they are shown.
var WholePhases = []Phase{Resolve, Fetch, Prepare, Decompress, Hash, Apply, Fsync, Finish, Other}

// Span is a phase of one layer, in seconds since the start of the pull. Decompress, Hash and Apply run in turns, buffer
// by buffer: their spans lie one after the other, with the right lengths, within the measured time of unpacking.
type Span struct {
	Phase Phase   `json:"phase"`
	Begin float64 `json:"begin_s"`
	End   float64 `json:"end_s"`
}

// LayerReport is what is known of one layer.
type LayerReport struct {
	// Number counts from 1, the lowest layer.
	Number      int    `json:"number"`
	Digest      string `json:"digest"`
	Compression string `json:"compression"` // none, gzip or zstd
	Packed      int64  `json:"packed_bytes"`
	Unpacked    int64  `json:"unpacked_bytes"`
	Files       int64  `json:"files"`
	// Phases are in seconds. They add up to the time from the start of the pull to the layer's end.
	Phases map[Phase]float64 `json:"phases_s"`
	// Spans follow each other without gaps, from the start of the pull to the layer's end.
	Spans []Span `json:"spans"`
	// FetchHash is an estimate of the seconds of Fetch that SHA-256 took: the blob's size at the speed of the second
	// pass.
	FetchHash float64 `json:"fetch_hash_s_estimated"`
	// SecondPass is the time of the second pass divided by the time that containerd took for the same work.
	SecondPass float64 `json:"second_pass_ratio"`
}

// Report explains one pull.
type Report struct {
	Image      string `json:"image"`
	Via        string `json:"via"`
	Containerd string `json:"containerd"`
	Cores      int    `json:"cores"`
	Unpackers  int    `json:"unpackers"`
	GzipHelper string `json:"gzip_helper,omitempty"`
	// Pull is the measured duration of the pull, in seconds.
	Pull     float64 `json:"pull_s"`
	Packed   int64   `json:"packed_bytes"`
	Unpacked int64   `json:"unpacked_bytes"`
	Files    int64   `json:"files"`
	// Phases divide the pull: a moment in which several phases ran, of several layers, is divided among them. They add
	// up to Pull.
	Phases map[Phase]float64 `json:"phases_s"`
	// Overlap is the work that was done at the same time: 1 if never two phases ran at once.
	Overlap float64       `json:"overlap"`
	Layers  []LayerReport `json:"layers"`
	Advice  []Advice      `json:"advice"`
	// Model is the length of this pull in the model that advice is computed with, in seconds.
	Model float64 `json:"model_s"`
}

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
		Unpackers: max(r.Unpackers, 1), GzipHelper: r.GzipHelper,
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
	report.Advice, report.Model = advise(report, r.Trial)
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
