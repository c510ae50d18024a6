// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Limits of messages about blobs.
const (
	MaxBlobs   = 128 // of a Blobs
	MaxBlobSet = 128 // bytes of a set of pieces
	MaxHolders = 16  // of a Holders
	// MaxRepositories is the size of the set of Repositories.
	MaxRepositories = 4096

	namesPerPiece  = 64 // of Repositories
	maxNamePieces  = MaxRepositories / namesPerPiece
	digestSize     = 32
	blobSize       = digestSize + 8 + 1 + 1          // bytes without the set
	holderSize     = addrSize + 2*digestSize + 1 + 1 // likewise
	flagComplete   = 1                               // of a holder
	flagNoRegistry = 1                               // of Blobs
)

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

func (m *Mirror) check() error { return checkAddr("mirror", m.Addr) }

func (m *Mirror) append(b []byte) []byte { return append(appendAddr(b, m.Addr), m.Fingerprint[:]...) }

func (m *Mirror) decode(d *decoder) {
	m.Addr = d.addr()
	copy(m.Fingerprint[:], d.take(digestSize))
}

// BlobState is how much of a blob a node has.
type BlobState uint8

// The states of a blob.
const (
	BlobGone     BlobState = 1 // nothing, and the node does not fetch it
	BlobPartial  BlobState = 2 // it is being fetched
	BlobComplete BlobState = 3 // the node has all of it
)

// Blob reports which part of a blob a node has.
type Blob struct {
	Digest BlobDigest // SHA-256 of the blob
	// Size of the blob in bytes; 0 if the node asks for it, with BlobPartial.
	Size  uint64
	State BlobState // how much of the blob the node has
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

func (m *Blobs) check() error {
	if len(m.Blobs) > MaxBlobs {
		return fmt.Errorf("%d blobs, at most %d per message", len(m.Blobs), MaxBlobs)
	}
	for i := range m.Blobs {
		b := &m.Blobs[i]
		if b.State < BlobGone || b.State > BlobComplete {
			return fmt.Errorf("unknown state of a blob %d", b.State)
		}
		if b.State != BlobPartial && len(b.Have) > 0 {
			return fmt.Errorf("pieces of a blob in state %d", b.State)
		}
		if err := checkSet("blob", b.Have); err != nil {
			return err
		}
	}
	return checkImage(m.Repository)
}

func (m *Blobs) append(b []byte) []byte {
	b = append(appendFlag(appendName(b, m.Repository), m.NoRegistry, flagNoRegistry), byte(len(m.Blobs)))
	for i := range m.Blobs {
		o := &m.Blobs[i]
		b = append(binary.BigEndian.AppendUint64(append(b, o.Digest[:]...), o.Size), byte(o.State))
		b = appendSet(b, o.Have)
	}
	return b
}

func (m *Blobs) decode(d *decoder) {
	m.Repository, m.NoRegistry = d.name(), d.flag(flagNoRegistry)
	if n := d.count(int(d.u8()), blobSize); n > 0 {
		m.Blobs = make([]Blob, n)
	}
	for i := range m.Blobs {
		o := &m.Blobs[i]
		copy(o.Digest[:], d.take(digestSize))
		o.Size, o.State, o.Have = d.u64(), BlobState(d.u8()), d.set()
	}
}

// Repositories is part of the set of repositories of all services whose pods may run on the daemon's node; see
// NewRepositories. All pieces of a generation, in order, are the set. Generations are counted per session. It is sent
// to daemons that have sent a Mirror.
type Repositories struct {
	Generation    uint64 // the version of the set, which grows
	Piece, Pieces uint16 // number of this message, from 0, and of all messages of the set
	// Names have their registry's name, 1 to MaxImageText bytes, at most 64 per message.
	Names []string
}

// NewRepositories splits the repositories of a node, at most MaxRepositories, into messages. An empty set takes one.
func NewRepositories(generation uint64, names []string) []*Repositories {
	pieces := max(1, (len(names)+namesPerPiece-1)/namesPerPiece)
	out := make([]*Repositories, pieces)
	for i := range out {
		out[i] = &Repositories{
			Generation: generation, Piece: uint16(i), Pieces: uint16(pieces),
			Names: names[min(i*namesPerPiece, len(names)):min((i+1)*namesPerPiece, len(names))],
		}
	}
	return out
}

// Type returns TypeRepositories.
func (*Repositories) Type() Type { return TypeRepositories }

func (m *Repositories) check() error {
	if m.Piece >= m.Pieces || m.Pieces > maxNamePieces {
		return fmt.Errorf("piece %d of %d, at most %d", m.Piece, m.Pieces, maxNamePieces)
	}
	if len(m.Names) > namesPerPiece {
		return fmt.Errorf("%d repositories, at most %d per message", len(m.Names), namesPerPiece)
	}
	for _, n := range m.Names {
		if err := checkImage(n); err != nil {
			return err
		}
	}
	return nil
}

func (m *Repositories) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Generation)
	b = binary.BigEndian.AppendUint16(b, m.Piece)
	b = binary.BigEndian.AppendUint16(b, m.Pieces)
	b = append(b, byte(len(m.Names)))
	for _, n := range m.Names {
		b = appendName(b, n)
	}
	return b
}

func (m *Repositories) decode(d *decoder) {
	m.Generation, m.Piece, m.Pieces = d.u64(), d.u16(), d.u16()
	if n := d.count(int(d.u8()), 2); n > 0 {
		m.Names = make([]string, n)
	}
	for i := range m.Names {
		m.Names[i] = d.name()
	}
}

// Holder is a node with pieces of a blob.
type Holder struct {
	Mirror // of the other node
	// Grant proves to the holder that the daemon may have the blob until Holders.Expires.
	Grant [32]byte
	// Complete is set if it has all pieces. Otherwise Have lists those that it has, in at most MaxBlobSet bytes.
	Complete bool
	Have     []byte // pieces that it has, unless Complete
}

// Holders answers a report of a BlobPartial with the next steps of the daemon.
type Holders struct {
	Repository string     // of the report that is answered
	Digest     BlobDigest // of the blob
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

func (m *Holders) check() error {
	if len(m.Holders) > MaxHolders {
		return fmt.Errorf("%d holders, at most %d", len(m.Holders), MaxHolders)
	}
	if err := checkSet("lease", m.Lease); err != nil {
		return err
	}
	for i := range m.Holders {
		h := &m.Holders[i]
		if err := h.check(); err != nil {
			return err
		}
		if err := checkSet("holder", h.Have); err != nil {
			return err
		}
	}
	return checkImage(m.Repository)
}

func (m *Holders) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(appendName(b, m.Repository), m.Digest[:]...), m.Size)
	b = appendSet(binary.BigEndian.AppendUint16(b, m.PauseMillis), m.Lease)
	b = append(binary.BigEndian.AppendUint64(b, m.Expires), byte(len(m.Holders)))
	for i := range m.Holders {
		h := &m.Holders[i]
		b = append(h.Mirror.append(b), h.Grant[:]...)
		b = appendSet(appendFlag(b, h.Complete, flagComplete), h.Have)
	}
	return b
}

func (m *Holders) decode(d *decoder) {
	m.Repository = d.name()
	copy(m.Digest[:], d.take(digestSize))
	m.Size, m.PauseMillis, m.Lease, m.Expires = d.u64(), d.u16(), d.set(), d.u64()
	if n := d.count(int(d.u8()), holderSize); n > 0 {
		m.Holders = make([]Holder, n)
	}
	for i := range m.Holders {
		h := &m.Holders[i]
		h.Mirror.decode(d)
		copy(h.Grant[:], d.take(digestSize))
		h.Complete, h.Have = d.flag(flagComplete), d.set()
	}
}

func checkSet(what string, set []byte) error {
	if len(set) > MaxBlobSet {
		return fmt.Errorf("%s: a set of %d bytes, at most %d", what, len(set), MaxBlobSet)
	}
	return nil
}

// appendSet appends the length of a set in one byte, then the set.
func appendSet(b, set []byte) []byte { return append(append(b, byte(len(set))), set...) }

// set reads a set; an empty one is nil.
func (d *decoder) set() []byte {
	if b := d.take(int(d.u8())); len(b) > 0 {
		return append([]byte(nil), b...)
	}
	return nil
}
