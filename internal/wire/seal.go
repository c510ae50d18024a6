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

// Key is the secret that a controller and its daemons share.
type Key [KeySize]byte

// Layout of a datagram, sizes in bytes. docs/protocol.md has the tables.
const (
	protocolVersion = 2
	maxDatagram     = 1200

	magic0, magic1 = 'W', 'g'

	kindHello   = 1
	kindWelcome = 2
	kindData    = 3

	clearHeader     = 4                                         // magic, version, kind
	handshakeHeader = clearHeader + chacha20poly1305.NonceSizeX // followed by a random nonce
	dataHeader      = clearHeader + 8 + 8                       // followed by session ID and counter
	tagSize         = chacha20poly1305.Overhead
	maxPayload      = maxDatagram - dataHeader - tagSize // room for frames
	maxCounter      = 1<<64 - 2                          // so that the replay window can hold the counter plus one

	randomSize = 32 // what each end contributes to the session keys
)

// HKDF info strings: each use and direction has its own key.
const (
	infoHello    = "wangell/2 hello"
	infoWelcome  = "wangell/2 welcome"
	infoToServer = "wangell/2 client to server"
	infoToClient = "wangell/2 server to client"
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

// Derive returns a key for a purpose other than sealing messages, the same on every node.
func (k Key) Derive(purpose string) Key { return deriveKey(k, nil, "wangell "+purpose) }

// deriveKey derives a key with HKDF-SHA-256 (RFC 5869) from the shared key.
func deriveKey(key Key, salt []byte, info string) Key {
	out, err := hkdf.Key(sha256.New, key[:], salt, info, KeySize)
	if err != nil {
		panic(err) // fails only for outputs longer than 255 hashes
	}
	return Key(out)
}

// handshakeSeals seal HELLO and WELCOME. Each has its own key, so that neither can be reflected to its sender.
type handshakeSeals struct{ hello, welcome cipher.AEAD }

func newHandshakeSeals(key Key) handshakeSeals {
	x := func(info string) cipher.AEAD {
		k := deriveKey(key, nil, info)
		a, err := chacha20poly1305.NewX(k[:])
		if err != nil {
			panic(err) // fails only for another key size
		}
		return a
	}
	return handshakeSeals{hello: x(infoHello), welcome: x(infoWelcome)}
}

// sessionSeals seal the datagrams of one session.
type sessionSeals struct{ toServer, toClient cipher.AEAD }

func newSessionSeals(key Key, client, server random) sessionSeals {
	x := func(info string) cipher.AEAD {
		k := sessionKey(key, client, server, info)
		a, err := chacha20poly1305.New(k[:])
		if err != nil {
			panic(err) // fails only for another key size
		}
		return a
	}
	return sessionSeals{toServer: x(infoToServer), toClient: x(infoToClient)}
}

func sessionKey(key Key, client, server random, info string) Key {
	salt := make([]byte, 0, 2*randomSize)
	salt = append(salt, client[:]...)
	salt = append(salt, server[:]...)
	return deriveKey(key, salt, info)
}

// datagramKind checks the unencrypted start of a datagram and returns its kind.
func datagramKind(d []byte) (byte, error) {
	if len(d) < clearHeader || len(d) > maxDatagram || d[0] != magic0 || d[1] != magic1 {
		return 0, errNoise
	}
	if d[2] != protocolVersion {
		return 0, fmt.Errorf("%w: %d", errVersion, d[2])
	}
	return d[3], nil
}

// sealHandshake returns a HELLO or WELCOME datagram.
func sealHandshake(a cipher.AEAD, kind byte, nonce [chacha20poly1305.NonceSizeX]byte, plain []byte) []byte {
	d := make([]byte, 0, handshakeHeader+len(plain)+tagSize)
	d = append(d, magic0, magic1, protocolVersion, kind)
	d = append(d, nonce[:]...)
	return a.Seal(d, nonce[:], plain, d[:clearHeader])
}

func newNonce() (n [chacha20poly1305.NonceSizeX]byte) {
	rand.Read(n[:])
	return n
}

// openHandshake opens a HELLO or WELCOME, whose plaintext has size bytes. It decrypts in place and overwrites d.
func openHandshake(a cipher.AEAD, d []byte, size int) ([]byte, error) {
	if len(d) != handshakeHeader+size+tagSize {
		return nil, errNoise
	}
	sealed := d[handshakeHeader:]
	plain, err := a.Open(sealed[:0], d[clearHeader:handshakeHeader], sealed, d[:clearHeader])
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
