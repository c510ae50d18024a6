// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// KeySize is the size of a Key in bytes.
const KeySize = 32

// Key is a secret of the wire: the master key, which controllers have, or the key of a node that is derived from it.
type Key [KeySize]byte

// ForNode returns the key of a node, with which its daemon and the controllers authenticate each other. It reveals
// nothing about the master key k or the keys of other nodes.
func (k Key) ForNode(node string) Key { return k.Derive("node " + node) }

// Layout of a datagram, sizes in bytes. docs/protocol/handshake.md has the tables.
const (
	protocolVersion = 3 // the only one that is accepted
	maxDatagram     = 1200

	magic0, magic1 = 'W', 'g'

	kindHello   = 1
	kindWelcome = 2
	kindData    = 3

	clearHeader = 4                         // magic, version, kind
	nodeHeader  = clearHeader + 1 + maxNode // of a HELLO: followed by the length of the node's name, and the name
	nonceSize   = chacha20poly1305.NonceSizeX
	dataHeader  = clearHeader + 8 + 8 // followed by session ID and counter
	tagSize     = chacha20poly1305.Overhead
	maxPayload  = maxDatagram - dataHeader - tagSize // room for frames
	maxCounter  = 1<<64 - 2                          // so that the replay window can hold the counter plus one

	randomSize = 32 // what each end contributes to the session keys
)

// Uses of keys: each, and each direction, has its own key. The HKDF info string has the version of the protocol before
// it.
const (
	useHello    = "hello"
	useWelcome  = "welcome"
	useToServer = "client to server"
	useToClient = "server to client"
)

// Reasons for dropping a datagram. Each is counted.
var (
	errNoise   = errors.New("not a datagram of this protocol")
	errVersion = errors.New("unsupported version of the protocol")
	errSeal    = errors.New("authentication failed: wrong key, or altered on the way")
	errReplay  = errors.New("replayed or too old")
	errUnknown = errors.New("no such session")
	errLimit   = errors.New("limit reached")
)

// random is what one end contributes to the session keys.
type random [randomSize]byte

func newRandom() (r random) {
	rand.Read(r[:]) // never fails (crypto/rand)
	return r
}

// newID returns a random session ID other than zero.
func newID() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := binary.BigEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// Derive returns a key for a purpose other than sealing messages.
func (k Key) Derive(purpose string) Key { return deriveKey(k, nil, "wangell "+purpose) }

// deriveKey derives a key with HKDF-SHA-256 (RFC 5869).
func deriveKey(key Key, salt []byte, info string) Key {
	out, err := hkdf.Key(sha256.New, key[:], salt, info, KeySize)
	if err != nil {
		panic(err) // fails only for outputs longer than 255 hashes
	}
	return Key(out)
}

// keyFor derives a key for a use.
func keyFor(key Key, salt []byte, use string) Key {
	return deriveKey(key, salt, fmt.Sprintf("wangell/%d %s", protocolVersion, use))
}

// handshakeSeal seals HELLO or WELCOME. Each has its own key, so that neither can be reflected to its sender. key is
// the node's.
func handshakeSeal(key Key, use string) cipher.AEAD {
	k := keyFor(key, nil, use)
	a, err := chacha20poly1305.NewX(k[:])
	if err != nil {
		panic(err) // fails only for another key size
	}
	return a
}

// sessionSeals seal the datagrams of one session.
type sessionSeals struct{ toServer, toClient cipher.AEAD }

func newSessionSeals(key Key, client, server random) sessionSeals {
	x := func(use string) cipher.AEAD {
		k := sessionKey(key, client, server, use)
		a, err := chacha20poly1305.New(k[:])
		if err != nil {
			panic(err) // fails only for another key size
		}
		return a
	}
	return sessionSeals{toServer: x(useToServer), toClient: x(useToClient)}
}

func sessionKey(key Key, client, server random, use string) Key {
	salt := make([]byte, 0, 2*randomSize)
	salt = append(salt, client[:]...)
	salt = append(salt, server[:]...)
	return keyFor(key, salt, use)
}

// datagramKind checks the unencrypted start of a datagram and returns its kind.
func datagramKind(d []byte) (kind byte, err error) {
	if len(d) < clearHeader || len(d) > maxDatagram || d[0] != magic0 || d[1] != magic1 {
		return 0, errNoise
	}
	if d[2] != protocolVersion {
		return 0, fmt.Errorf("%w: %d, and this side has %d: run the same release of Wangell on both", errVersion, d[2],
			protocolVersion)
	}
	return d[3], nil
}

// clearStart is the start of every datagram.
func clearStart(kind byte) []byte { return []byte{magic0, magic1, protocolVersion, kind} }

// sealHandshake returns a HELLO or WELCOME datagram that begins with header, which is authenticated as well.
func sealHandshake(a cipher.AEAD, header []byte, nonce [nonceSize]byte, plain []byte) []byte {
	d := make([]byte, 0, len(header)+nonceSize+len(plain)+tagSize)
	d = append(append(d, header...), nonce[:]...)
	return a.Seal(d, nonce[:], plain, header)
}

func newNonce() (n [nonceSize]byte) {
	rand.Read(n[:])
	return n
}

// openHandshake opens a HELLO or WELCOME, whose header and plaintext have the given sizes. It decrypts in place and
// overwrites d.
func openHandshake(a cipher.AEAD, d []byte, header, size int) ([]byte, error) {
	if len(d) != header+nonceSize+size+tagSize {
		return nil, errNoise
	}
	sealed := d[header+nonceSize:]
	plain, err := a.Open(sealed[:0], d[header:header+nonceSize], sealed, d[:header])
	if err != nil {
		return nil, errSeal
	}
	return plain, nil
}

// dataNonce returns four zero bytes followed by the counter, big endian.
func dataNonce(counter uint64) (n [chacha20poly1305.NonceSize]byte) {
	binary.BigEndian.PutUint64(n[4:], counter)
	return n
}

// beginData writes the header of a data datagram to buf. The caller appends the payload and calls sealData.
func beginData(buf []byte, session, counter uint64) []byte {
	b := append(buf[:0], magic0, magic1, protocolVersion, kindData)
	b = binary.BigEndian.AppendUint64(b, session)
	return binary.BigEndian.AppendUint64(b, counter)
}

// sealData seals the payload that follows the header in d; in place if d has capacity for the tag.
func sealData(a cipher.AEAD, d []byte) []byte {
	nonce := dataNonce(binary.BigEndian.Uint64(d[12:]))
	return a.Seal(d[:dataHeader], nonce[:], d[dataHeader:], d[:dataHeader])
}

// dataIDs returns the session ID and the counter of a data datagram.
func dataIDs(d []byte) (session, counter uint64, err error) {
	if len(d) < dataHeader+tagSize {
		return 0, 0, errNoise
	}
	session, counter = binary.BigEndian.Uint64(d[4:]), binary.BigEndian.Uint64(d[12:])
	if counter > maxCounter {
		return 0, 0, errNoise
	}
	return session, counter, nil
}

// openData decrypts a data datagram in place and returns its payload.
func openData(a cipher.AEAD, d []byte) ([]byte, error) {
	nonce := dataNonce(binary.BigEndian.Uint64(d[12:]))
	sealed := d[dataHeader:]
	plain, err := a.Open(sealed[:0], nonce[:], sealed, d[:dataHeader])
	if err != nil {
		return nil, errSeal
	}
	return plain, nil
}

// replayBits is the number of counters below the highest one that are still accepted.
const replayBits = 1024

// replayWindow records the counters of the datagrams that were opened (RFC 6479).
type replayWindow struct {
	top  uint64 // one past the highest counter
	bits [replayBits / 64]uint64
}

// fresh reports whether a datagram with counter c may be accepted.
func (w *replayWindow) fresh(c uint64) bool {
	if c >= w.top {
		return true
	}
	if w.top-c > replayBits {
		return false
	}
	return w.bits[c/64%uint64(len(w.bits))]&(1<<(c%64)) == 0
}

// commit records counter c, whose datagram was opened. It must not be called before the datagram is authenticated,
// because it moves the window.
func (w *replayWindow) commit(c uint64) {
	if c >= w.top {
		if c-w.top >= replayBits {
			w.bits = [replayBits / 64]uint64{}
		} else {
			for i := w.top; i < c; i++ {
				w.bits[i/64%uint64(len(w.bits))] &^= 1 << (i % 64)
			}
		}
		w.top = c + 1
	}
	w.bits[c/64%uint64(len(w.bits))] |= 1 << (c % 64)
}
