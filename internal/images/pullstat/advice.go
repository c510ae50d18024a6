// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"fmt"
	"strings"
)

// Limits from which on advice is given.
const (
	mostPiece  = 64e6 // bytes of the pieces of large images
	leastPiece = 8e6  // and of small ones
	fatShare   = 0.4  // of all bytes: a fat layer
	leastGain  = 0.05 // less is not worth a line
	smallBytes = 4e6  // layers smaller than this are joined, up to a piece
	boundShare = 0.4  // share of the pull from which it is bound by a resource
)

// advise returns the changes that would make the pull faster, and the length of the pull in the model behind the
// figures. Each trial may be nil.
func advise(r Report, trial *Trial, erofs *ErofsTrial) ([]Advice, float64) {
	now := planOf(r)
	model := now.length(r.Unpackers)
	unpackers := max(r.Cores, r.Unpackers, 1)
	piece := min(max(r.Packed/int64(4*unpackers), leastPiece), mostPiece)
	var all []Advice
	gain := func(do string, changed plan, unpackers int, format string, args ...any) {
		length := changed.length(unpackers)
		if g := 1 - length/model; model > 0 && g >= leastGain {
			all = append(all, Advice{Do: do, Text: fmt.Sprintf(format, args...), Expected: r.Pull * (1 - g), Gain: g})
		}
	}
	parallel := ""
	if unpackers > r.Unpackers {
		parallel = fmt.Sprintf("let containerd (2.2.3 or later) unpack %d layers at once", unpackers)
	}
	split := fmt.Sprintf("in pieces of %d MB", piece/1e6)
	if parallel != "" {
		split += ", and " + parallel
	}
	fat := fattest(r)
	splits := r.Layers[fat].Packed >= 2*piece && float64(r.Layers[fat].Packed) >= fatShare*float64(r.Packed)
	if unpackers > 1 {
		if splits {
			gain("split", now.split(piece), unpackers,
				"layer %d holds %.0f %% of the bytes and is unpacked by one core: split it, %s", fat+1,
				100*float64(r.Layers[fat].Packed)/float64(r.Packed), split)
		} else if len(r.Layers) > 1 && parallel != "" {
			gain("parallel", now, unpackers, "layers were unpacked one after the other: %s", parallel)
		}
	}
	if trial != nil && trial.GzipTime > 0 && trial.Gzip > 0 {
		gain("zstd", now.zstd(*trial), r.Unpackers,
			"gzip → zstd: decompresses %.1f times as fast here, and has %.0f %% of the size (tried with %.0f MB of this image)",
			trial.GzipTime.Seconds()/max(trial.ZstdTime.Seconds(), 1e-9), 100*float64(trial.Zstd)/float64(trial.Gzip),
			float64(trial.Unpacked)/1e6)
		if unpackers > 1 && splits {
			gain("zstd+split", now.zstd(*trial).split(piece), unpackers, "both: zstd, %s", split)
		}
	}
	if erofs != nil && erofs.Files > 0 {
		gain("erofs", now.erofs(*erofs), r.Unpackers, "files → an image of EROFS for each layer, by containerd's "+
			"snapshotter erofs (containerd 2.2.3, Linux 6.12 or later): written %.1f times as fast here (tried with layer %d)",
			erofs.Files.Seconds()/max(erofs.Image.Seconds(), 1e-9), erofs.Layer+1)
	}
	if small := smallLayers(r); small > 1 {
		gain("join", now.joined(smallBytes, mostPiece), r.Unpackers,
			"%d layers are smaller than %d MB, and each costs a snapshot and its fsync: join them", small, int(smallBytes/1e6))
	}
	all = append(all, bounds(r)...)
	if len(all) == 0 {
		all = []Advice{{Do: "none", Text: "nothing stands out: no change to the image promises 5 % or more"}}
	}
	return all, model
}

// bounds returns advice about the resources that bind a pull, without figures.
func bounds(r Report) []Advice {
	var all []Advice
	add := func(do, format string, args ...any) {
		all = append(all, Advice{Do: do, Text: fmt.Sprintf(format, args...)})
	}
	var raw, gzip LayerReport
	raw.Phases, gzip.Phases = map[Phase]float64{}, map[Phase]float64{}
	for _, l := range r.Layers {
		into := &raw
		switch l.Compression {
		case "gzip":
			into = &gzip
		case "none":
		default:
			continue
		}
		into.Unpacked += l.Unpacked
		into.FetchHash += l.FetchHash
		for p, s := range l.Phases {
			into.Phases[p] += s
		}
	}
	hash := raw.Phases[Hash] + raw.FetchHash
	unpack := raw.Phases[Hash] + raw.Phases[Decompress] + raw.Phases[Apply]
	if unpack > 0 && float64(raw.Unpacked) >= 0.1*float64(r.Unpacked) && raw.Phases[Hash] >= boundShare*unpack {
		add("hash", "uncompressed layers are bound by SHA-256 here: %.0f %% of their unpacking (%.0f MB/s), and about "+
			"%.1f s more of their download: compress them, with zstd", 100*raw.Phases[Hash]/unpack,
			float64(raw.Unpacked)/1e6/raw.Phases[Hash], hash-raw.Phases[Hash])
	}
	if gzip.Phases[Decompress] >= boundShare*r.Pull && r.GzipHelper == "" {
		add("decompressor", "gzip is decompressed by containerd's own Go code: put igzip (package isal; containerd 2) "+
			"or unpigz (package pigz) into its $PATH; not tried here")
	}
	if s := r.Phases[Apply]; s >= boundShare*r.Pull {
		add("disk", "writing files takes %.0f %% of the pull (%.0f MB/s, %.0f files/s): if the disk is what limits it, and "+
			"not the processor, unpacking layers at once gains less than expected here", 100*s/r.Pull, float64(r.Unpacked)/1e6/s,
			float64(r.Files)/s)
	}
	if r.Phases[Fetch]+r.Phases[Resolve] >= (1-boundShare)*r.Pull {
		add("network", "the pull is bound by the registry or the network (%.0f %% of its time): a mirror or a cache near "+
			"the node helps more than any change of the image", 100*(r.Phases[Fetch]+r.Phases[Resolve])/r.Pull)
	}
	return all
}

// fattest returns the index of the largest layer.
func fattest(r Report) int {
	fat := 0
	for i, l := range r.Layers {
		if l.Packed > r.Layers[fat].Packed {
			fat = i
		}
	}
	return fat
}

func smallLayers(r Report) int {
	n := 0
	for _, l := range r.Layers {
		if l.Packed < smallBytes {
			n++
		}
	}
	return n
}

// String returns the advice as a line of text, with the expected gain.
func (a Advice) String() string {
	var b strings.Builder
	b.WriteString(a.Text)
	if a.Gain > 0 {
		fmt.Fprintf(&b, ": about −%.0f %% (%.1f s)", 100*a.Gain, a.Expected)
	}
	return b.String()
}
