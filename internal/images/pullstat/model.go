// SPDX-License-Identifier: Apache-2.0

package pullstat

import "slices"

// job is a layer in the model of a pull. Times are in seconds.
type job struct {
	fetching, fetched       float64 // since the start of the pull
	decompress, hash, apply float64
	commit                  float64 // preparing and committing the snapshot
	packed                  int64   // bytes
	compression             string
}

// plan is a whole pull in the model.
type plan struct {
	jobs   []job
	finish float64
}

// planOf returns the plan of a pull as it happened.
func planOf(r Report) plan {
	p := plan{finish: r.Phases[Finish]}
	for _, l := range r.Layers {
		j := job{
			decompress: l.Phases[Decompress], hash: l.Phases[Hash], apply: l.Phases[Apply], commit: l.Phases[Prepare],
			packed: l.Packed, compression: l.Compression,
		}
		fetched := false
		for _, s := range l.Spans {
			switch {
			case s.Phase == Fetch:
				j.fetching, j.fetched = s.Begin, s.End
			case s.Phase == Fsync && !fetched && s.Begin == j.fetched && j.fetched > 0:
				j.fetched, fetched = s.End, true
			case s.Phase == Fsync:
				j.commit += s.End - s.Begin
			}
		}
		p.jobs = append(p.jobs, j)
	}
	return p
}

// length returns how long a pull with a number of unpackers takes: a layer is unpacked once it is downloaded and an
// unpacker is free, in order; snapshots are committed one after the other.
func (p plan) length(unpackers int) float64 {
	free := make([]float64, max(unpackers, 1))
	committed := 0.0
	for _, j := range p.jobs {
		worker := slices.Index(free, slices.Min(free))
		done := max(free[worker], j.fetched) + j.decompress + j.hash + j.apply
		committed = max(committed, done) + j.commit
		free[worker] = done
		if len(free) == 1 {
			free[0] = committed
		}
	}
	return committed + p.finish
}

// mapped returns the plan with another job for each.
func (p plan) mapped(f func(job) []job) plan {
	changed := plan{finish: p.finish}
	for _, j := range p.jobs {
		changed.jobs = append(changed.jobs, f(j)...)
	}
	return changed
}

// split returns a plan in which no layer has more than most bytes, packed. Each piece costs a commit.
func (p plan) split(most int64) plan {
	return p.mapped(func(j job) []job {
		n := int((j.packed + most - 1) / most)
		if n <= 1 {
			return []job{j}
		}
		var pieces []job
		for i := range n {
			piece, part := j, 1/float64(n)
			piece.fetched = j.fetching + (j.fetched-j.fetching)*float64(i+1)*part
			piece.decompress, piece.hash, piece.apply = j.decompress*part, j.hash*part, j.apply*part
			piece.packed = j.packed / int64(n)
			pieces = append(pieces, piece)
		}
		return pieces
	})
}

// zstd returns a plan in which layers compressed with gzip are compressed with zstd instead.
func (p plan) zstd(t Trial) plan {
	smaller := float64(t.Zstd) / float64(t.Gzip)
	quicker := t.ZstdTime.Seconds() / t.GzipTime.Seconds()
	return p.mapped(func(j job) []job {
		if j.compression == "gzip" {
			j.decompress *= quicker
			j.fetched = j.fetching + (j.fetched-j.fetching)*smaller
			j.packed = int64(float64(j.packed) * smaller)
		}
		return []job{j}
	})
}

// erofs returns a plan in which layers become images of EROFS instead of files.
func (p plan) erofs(t ErofsTrial) plan {
	quicker := t.Image.Seconds() / t.Files.Seconds()
	return p.mapped(func(j job) []job {
		j.apply *= quicker
		return []job{j}
	})
}

// joined returns a plan in which neighbours smaller than small are one layer, of at most most bytes, packed.
func (p plan) joined(small, most int64) plan {
	joined := plan{finish: p.finish}
	open := false // the last layer consists of small ones
	for _, j := range p.jobs {
		last := len(joined.jobs) - 1
		if !open || j.packed >= small || joined.jobs[last].packed+j.packed > most ||
			joined.jobs[last].compression != j.compression {
			joined.jobs = append(joined.jobs, j)
			open = j.packed < small
			continue
		}
		into := &joined.jobs[last]
		into.fetched = max(into.fetched, j.fetched)
		into.decompress, into.hash, into.apply = into.decompress+j.decompress, into.hash+j.hash, into.apply+j.apply
		into.packed += j.packed
	}
	return joined
}
