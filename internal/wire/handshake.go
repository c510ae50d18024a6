// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

const (
	// A HELLO names its node before the sealed part, as the server derives the key from the name. It has a fixed size
	// and is longer than a WELCOME, so that a replayed HELLO is no amplifier.
	helloSize   = randomSize + 8 + 16 + 8 + 8
	welcomeSize = 2*randomSize + 8 + 16 + 8 + 3*8

	// maxPending limits the handshakes that await the client's first data datagram. Beyond it, the oldest is dropped. All
	// clients may begin at the same time.
	maxPending  = 1024
	pendingLife = 10 * time.Second
	// maxPendingNode limits those of one node, so that nobody with a node's key can displace those of other nodes.
	maxPendingNode = 8
)

// hello is the content of a HELLO, which a client sends first.
type hello struct {
	client   random
	session  uint64 // the client's session ID, which the server writes into its datagrams
	boot     bootID
	instance uint64        // start of the client in Unix nanoseconds; of two clients of a node, the newer one wins
	sent     monotime.Time // by the client's clock
	node     string        // 1-253 bytes
}

func (h *hello) check() error {
	if h.session == 0 {
		return errors.New("session ID 0")
	}
	if h.node == "" {
		return errors.New("no node name")
	}
	if err := checkString("node", h.node, maxNode); err != nil {
		return err
	}
	return checkTimes(h.sent)
}

// header returns what precedes the nonce of a HELLO.
func (h *hello) header() []byte {
	b := clearStart(kindHello)
	b = append(append(b, byte(len(h.node))), h.node...)
	return append(b, make([]byte, nodeHeader-len(b))...)
}

// encode returns the plaintext of the sealed part.
func (h *hello) encode() []byte {
	b := make([]byte, 0, helloSize)
	b = append(b, h.client[:]...)
	b = binary.BigEndian.AppendUint64(b, h.session)
	b = append(b, h.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, h.instance)
	return binary.BigEndian.AppendUint64(b, uint64(h.sent))
}

// seal returns the datagram of a HELLO.
func (h *hello) seal(key Key, nonce [nonceSize]byte) []byte {
	return sealHandshake(handshakeSeal(key, useHello), h.header(), nonce, h.encode())
}

// helloNode returns the node that a HELLO names before its sealed part. The name is not authenticated yet.
func helloNode(d []byte) (string, error) {
	if len(d) != nodeHeader+nonceSize+helloSize+tagSize {
		return "", errNoise
	}
	node, err := paddedName(d[clearHeader:nodeHeader])
	if err != nil || node == "" || checkString("node", node, maxNode) != nil {
		return "", errNoise
	}
	return node, nil
}

// openHelloWith opens a HELLO with the key of the node that it names, and overwrites d. That key is derived from the
// master key, so the key of one node does not allow impersonation of another.
func openHelloWith(d []byte, k *helloKey) (h hello, key Key, err error) {
	plain, err := openHandshake(k.open, d, nodeHeader, helloSize)
	if err != nil {
		return h, k.key, err
	}
	node, err := helloNode(d)
	if err == nil {
		h, err = decodeHello(plain, node)
	}
	if err != nil {
		return h, k.key, fmt.Errorf("HELLO: %w", err)
	}
	return h, k.key, nil
}

// paddedName reads a name that its length precedes and zeros follow.
func paddedName(b []byte) (string, error) {
	d := decoder{b: b}
	name := d.str(int(d.u8()))
	for _, pad := range d.take(d.left()) {
		if pad != 0 {
			d.fail("padding is not zero")
		}
	}
	return name, d.err
}

func decodeHello(b []byte, node string) (h hello, err error) {
	d := decoder{b: b}
	copy(h.client[:], d.take(randomSize))
	h.session = d.u64()
	copy(h.boot[:], d.take(len(h.boot)))
	h.instance, h.sent, h.node = d.u64(), d.time(), node
	if err := d.end(); err != nil {
		return h, err
	}
	return h, h.check()
}

// welcome is the plaintext of a WELCOME, the server's answer.
type welcome struct {
	client, server    random
	session           uint64 // the server's session ID
	boot              bootID
	instance          uint64        // start of the server in Unix nanoseconds
	sent              monotime.Time // by the server's clock
	echo, echoArrived monotime.Time // sent of the HELLO, and its arrival by the server's clock
}

func (w *welcome) encode() []byte {
	b := make([]byte, 0, welcomeSize)
	b = append(b, w.client[:]...)
	b = append(b, w.server[:]...)
	b = binary.BigEndian.AppendUint64(b, w.session)
	b = append(b, w.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, w.instance)
	b = binary.BigEndian.AppendUint64(b, uint64(w.sent))
	b = binary.BigEndian.AppendUint64(b, uint64(w.echo))
	return binary.BigEndian.AppendUint64(b, uint64(w.echoArrived))
}

// seal returns the datagram of a WELCOME.
func (w *welcome) seal(key Key, nonce [nonceSize]byte) []byte {
	return sealHandshake(handshakeSeal(key, useWelcome), clearStart(kindWelcome), nonce, w.encode())
}

func decodeWelcome(b []byte) (w welcome, err error) {
	d := decoder{b: b}
	copy(w.client[:], d.take(randomSize))
	copy(w.server[:], d.take(randomSize))
	w.session = d.u64()
	copy(w.boot[:], d.take(len(w.boot)))
	w.instance, w.sent, w.echo, w.echoArrived = d.u64(), d.time(), d.time(), d.time()
	if err := d.end(); err != nil {
		return w, err
	}
	if w.session == 0 {
		return w, errors.New("session ID 0")
	}
	return w, checkTimes(w.sent, w.echo, w.echoArrived)
}

// pending is a handshake whose client has not proved yet that it received the WELCOME. Its HELLO may be a replay.
type pending struct {
	hello  hello
	addr   netip.AddrPort
	server random
	id     uint64 // the server's session ID
	seals  sessionSeals
	born   time.Time
}

// pendings holds at most maxPending handshakes. The zero value is empty.
type pendings struct {
	list     []*pending // oldest first
	ids      map[uint64]*pending
	byClient map[random]*pending
	ofNode   map[string]int // how many
}

// byRandom returns the handshake to which a repeated HELLO belongs, or nil.
func (p *pendings) byRandom(client random, now time.Time) *pending {
	p.expire(now)
	return p.byClient[client]
}

// byID returns the handshake that a data datagram for session id would complete, or nil.
func (p *pendings) byID(id uint64, now time.Time) *pending {
	p.expire(now)
	return p.ids[id]
}

// expire drops the handshakes that are too old.
func (p *pendings) expire(now time.Time) {
	for len(p.list) > 0 && now.Sub(p.list[0].born) > pendingLife {
		p.remove(p.list[0])
	}
}

// add stores a handshake. It reports whether it dropped the oldest one for it, of this node or of all.
func (p *pendings) add(h *pending) (evicted bool) {
	oldest := -1
	if p.ofNode[h.hello.node] >= maxPendingNode {
		oldest = slices.IndexFunc(p.list, func(o *pending) bool { return o.hello.node == h.hello.node })
	} else if len(p.list) >= maxPending {
		oldest = 0
	}
	if oldest >= 0 {
		p.remove(p.list[oldest])
		evicted = true
	}
	if p.ids == nil {
		p.ids, p.byClient, p.ofNode = map[uint64]*pending{}, map[random]*pending{}, map[string]int{}
	}
	p.ofNode[h.hello.node]++
	p.list, p.ids[h.id], p.byClient[h.hello.client] = append(p.list, h), h, h
	return evicted
}

func (p *pendings) remove(h *pending) {
	if i := slices.Index(p.list, h); i >= 0 {
		p.list = slices.Delete(p.list, i, i+1)
		delete(p.ids, h.id)
		delete(p.byClient, h.hello.client)
		if p.ofNode[h.hello.node]--; p.ofNode[h.hello.node] == 0 {
			delete(p.ofNode, h.hello.node)
		}
	}
}
