// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// BlobDigest is the SHA-256 of a blob of an image.
type BlobDigest [32]byte

// Mirror reports that the daemon's node shares blobs of images with other nodes. It is sent at the start of a session.
type Mirror struct {
	// Addr is where other nodes ask for them, by TLS.
	Addr netip.AddrPort
	// Fingerprint is the SHA-256 of the certificate of the daemon, as a server and as a client.
	Fingerprint [32]byte
}

// Type returns TypeMirror.
func (*Mirror) Type() Type { return TypeMirror }

// BlobState is how much of a blob a node has.
type BlobState uint8

// The states of a blob.
const (
	BlobGone     BlobState = 1 // nothing, and the node does not fetch it
	BlobPartial  BlobState = 2 // it is being fetched
	BlobComplete BlobState = 3
)

// Blob reports which part of a blob a node has.
type Blob struct {
	Digest BlobDigest
	// Size of the blob in bytes; 0 if the node asks for it, with BlobPartial.
	Size  uint64
	State BlobState
	// Have is the set of pieces of a BlobPartial (swarm.Set), at most MaxBlobSet bytes.
	Have []byte
}

// Blobs reports blobs of a repository: all at the start of a session, then those that changed. Each BlobPartial is
// answered by a Holders.
type Blobs struct {
	// Repository has its registry's name: "docker.io/library/nginx", 1 to MaxImageText bytes.
	Repository string
	// NoRegistry is set if the node cannot get blobs of the repository from its registry.
	NoRegistry bool
	Blobs      []Blob // at most MaxBlobs per message
}

// Type returns TypeBlobs.
func (*Blobs) Type() Type { return TypeBlobs }

// Repositories is part of the set of repositories of all services whose pods may run on the daemon's node; see
// NewRepositories. All pieces of a generation, in order, are the set. Generations are counted per session. It is sent
// to daemons that have sent a Mirror.
type Repositories struct {
	Generation    uint64
	Piece, Pieces uint16
	// Names have their registry's name, 1 to MaxImageText bytes, at most 64 per message.
	Names []string
}

// Type returns TypeRepositories.
func (*Repositories) Type() Type { return TypeRepositories }

// Holder is a node with pieces of a blob.
type Holder struct {
	Mirror
	// Grant proves to the holder that the daemon may have the blob until Holders.Expires.
	Grant [32]byte
	// Complete is set if it has all pieces; otherwise Have lists them, in at most MaxBlobSet bytes.
	Complete bool
	Have     []byte
}

// Holders answers a report of a BlobPartial with the next steps of the daemon.
type Holders struct {
	Repository string
	Digest     BlobDigest
	// Size of the blob in bytes; 0 if no node has it.
	Size uint64
	// PauseMillis is how long to wait before the next report of the blob, unless there is nothing else to do.
	PauseMillis uint16
	// Lease are the pieces that the daemon should get from the registry, at most MaxBlobSet bytes.
	Lease []byte
	// Expires is the end of the grants, in seconds of Unix time.
	Expires uint64
	Holders []Holder // at most MaxHolders
}

// Type returns TypeHolders.
func (*Holders) Type() Type { return TypeHolders }
