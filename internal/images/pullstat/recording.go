// SPDX-License-Identifier: Apache-2.0

// Package pullstat explains where the time of an image pull went. Its functions are pure: from a Recording, the times
// that containerd itself reported during a pull, they make a Report with the phases of each layer, how they overlapped,
// and what would make the pull faster.
package pullstat

import "time"

// Recording is what was observed during one pull. Its JSON form is a test's fixture.
type Recording struct {
	// Image is the reference that was pulled.
	Image string `json:"image"`
	// Via is how it was pulled: "cri" or "containerd".
	Via string `json:"via"`
	// Containerd is the version of containerd.
	Containerd string `json:"containerd"`
	// Cores is the number of CPU cores that containerd could use.
	Cores int `json:"cores"`
	// Unpackers is the number of layers that containerd may unpack at once; 0 means 1, containerd's default.
	Unpackers int `json:"unpackers,omitempty"`
	// Snapshotter is containerd's; empty: overlayfs.
	Snapshotter string `json:"snapshotter,omitempty"`
	// GzipHelper is the program with which containerd decompresses gzip, such as unpigz; empty: none.
	GzipHelper string `json:"gzip_helper,omitempty"`
	// Begin and End are the times right before and after the call that pulled the image, by the clock of the caller.
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	// CPU is the processor time that containerd and its helpers used meanwhile; 0 if it is not known.
	CPU time.Duration `json:"cpu_ns,omitempty"`
	// Layers are the layers of the manifest, the lowest first.
	Layers []Layer `json:"layers"`
	// Events are in no particular order.
	Events []Event `json:"events"`
	// Stages are the second pass, by layer. It is as long as Layers.
	Stages []Stage `json:"stages"`
	// Trial is nil if nothing was tried.
	Trial *Trial `json:"trial,omitempty"`
	// Erofs is nil if that was not tried.
	Erofs *ErofsTrial `json:"erofs_trial,omitempty"`
}

// Layer is a layer as the manifest and the image's configuration describe it.
type Layer struct {
	Digest string `json:"digest"`
	// ChainID is the name of the snapshot that the layer becomes.
	ChainID string `json:"chain_id"`
	// Packed is the size of the blob in bytes.
	Packed int64 `json:"packed_bytes"`
}

// EventKind is what an Event reports.
type EventKind string

// Kinds of events, in the order in which they happen to a layer. Events before EventPrepared, and EventApplied, name a
// blob; the other two a chain ID.
const (
	// EventFetch is the start of a download: the record "fetch" in containerd's log.
	EventFetch EventKind = "fetch"
	// EventReceived is the last write to a blob, as the content store reports it. It is missing if the blob was
	// committed at once.
	EventReceived EventKind = "received"
	// EventStored is the end of the blob's commit in the content store, which has flushed it to the disk.
	EventStored EventKind = "stored"
	// EventPrepared is the snapshotter's event for a snapshot that is ready to be unpacked into.
	EventPrepared EventKind = "prepared"
	// EventApplied is the end of unpacking: the record "diff applied" in containerd's log. Took is set.
	EventApplied EventKind = "applied"
	// EventCommitted is the snapshotter's event for the finished snapshot.
	EventCommitted EventKind = "committed"
)

// Event is a report of containerd about a layer.
type Event struct {
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// ID is the blob's digest or the snapshot's chain ID.
	ID string `json:"id"`
	// Took is how long the work that ended took, as containerd measured it; 0 where it does not say.
	Took time.Duration `json:"took_ns,omitempty"`
}

// Stage is the second pass over a layer: the blob that containerd stored was unpacked once more, by the same library,
// with a clock around each stage. Containerd measures only their sum, during the pull; the second pass, its parts.
type Stage struct {
	// Compression is none, gzip or zstd, by the bytes of the blob: the manifest's media types are not always true, and
	// containerd does not ask them.
	Compression string `json:"compression"`
	// Unpacked is the size of the layer's tar archive, in bytes.
	Unpacked int64 `json:"unpacked_bytes"`
	// Files is the number of entries of the archive.
	Files int64 `json:"files"`
	// Decompress, Hash and Apply are the times that the reader of the archive waited for the decompressor, computed
	// SHA-256, and wrote files.
	Decompress time.Duration `json:"decompress_ns"`
	Hash       time.Duration `json:"hash_ns"`
	Apply      time.Duration `json:"apply_ns"`
}

func (s Stage) total() time.Duration { return s.Decompress + s.Hash + s.Apply }

// Trial is a piece of the image's largest gzip layer compressed with zstd, level 3, and decompressed on this machine.
type Trial struct {
	// Unpacked and Zstd are the sizes of the piece, in bytes, and Gzip its size as it is in the image.
	Unpacked int64 `json:"unpacked_bytes"`
	Gzip     int64 `json:"gzip_bytes"`
	Zstd     int64 `json:"zstd_bytes"`
	// GzipTime and ZstdTime are the times to decompress it.
	GzipTime time.Duration `json:"gzip_ns"`
	ZstdTime time.Duration `json:"zstd_ns"`
}

// ErofsTrial is a layer, the one whose files took longest to write, that was also made an image of EROFS.
type ErofsTrial struct {
	// Layer is its index.
	Layer int `json:"layer"`
	// Files and Image are the times to write its files, and to write the image.
	Files time.Duration `json:"files_ns"`
	Image time.Duration `json:"image_ns"`
}
