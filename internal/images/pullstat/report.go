// SPDX-License-Identifier: Apache-2.0

package pullstat

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
	// Fsync is the commit of a blob to the content store and the commit of a snapshot, which both wait for the disk.
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
	// Snapshotter is containerd's; empty: overlayfs.
	Snapshotter string `json:"snapshotter,omitempty"`
	GzipHelper  string `json:"gzip_helper,omitempty"`
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

// through is how the image was pulled, for people.
func (r Report) through() string {
	if r.Snapshotter == "" {
		return r.Via
	}
	return r.Via + ", " + r.Snapshotter
}

// Advice is one thing that would make the pull faster.
type Advice struct {
	// Do names what to change: split, parallel, zstd, zstd+split, join, decompressor, hash, disk, network or none.
	Do string `json:"do"`
	// Text says what was found and what to do.
	Text string `json:"text"`
	// Expected is the length of the pull after the change, in seconds, by the model; 0 if no figure can be given.
	Expected float64 `json:"expected_s,omitempty"`
	// Gain is the part of the pull that would be saved, 0 to 1.
	Gain float64 `json:"gain,omitempty"`
}
