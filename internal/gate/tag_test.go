// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"path/filepath"
	"testing"
)

// tagKeys are the keys in tests.
var tagKeys = TagKeys{First: 7, Keys: [2]TagKey{{1, 2, 3}, {4, 5, 6}}}

// plain are nodes without tags, tagging nodes that tag all packets.
func plain(addrs ...netip.Addr) (nodes []Node) {
	for _, a := range addrs {
		nodes = append(nodes, Node{Addr: a})
	}
	return nodes
}

func tagging(addrs ...netip.Addr) (nodes []Node) {
	for _, a := range addrs {
		nodes = append(nodes, Node{Addr: a, Tags: true, TagsAll: true})
	}
	return nodes
}

// siphash13 is SipHash-1-3, written from its specification independently of the gate's, for comparison.
func siphash13(key TagKey, message []byte) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	round := func() {
		v[0] += v[1]
		v[2] += v[3]
		v[1], v[3] = bits.RotateLeft64(v[1], 13)^v[0], bits.RotateLeft64(v[3], 16)^v[2]
		v[0] = bits.RotateLeft64(v[0], 32)
		v[2] += v[1]
		v[0] += v[3]
		v[1], v[3] = bits.RotateLeft64(v[1], 17)^v[2], bits.RotateLeft64(v[3], 21)^v[0]
		v[2] = bits.RotateLeft64(v[2], 32)
	}
	last := uint64(len(message)) << 56
	for ; len(message) >= 8; message = message[8:] {
		m := binary.LittleEndian.Uint64(message)
		v[3] ^= m
		round()
		v[0] ^= m
	}
	v[3] ^= last
	round()
	v[0] ^= last
	v[2] ^= 0xff
	for range 3 {
		round()
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

// SipHash's published vectors are of SipHash-2-4. This one is of Rust's SipHasher13: key 00 to 0f, message 00 to 07.
func TestSiphash13OfTheTests(t *testing.T) {
	var key TagKey
	message := make([]byte, 8)
	for i := range key {
		key[i] = byte(i)
	}
	for i := range message {
		message[i] = byte(i)
	}
	if got, want := siphash13(key, message), uint64(0x369095118d299a8e); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// tagMask is what masks bytes 2 to 11 of the header of an encapsulated frame, whose bytes 0 and 1 are set.
func tagMask(frame []byte, key TagKey) []byte {
	ip := frame[ethernetHeader+outerLen:]
	l4 := ip[int(ip[0]&15)*4:]
	in := make([]byte, 32)
	copy(in, frame[26:34]) // the nodes
	in[8], in[9], in[10] = frame[42], frame[43], ip[9]
	if ip[9] == 6 {
		if in[11] = l4[13] & 6; in[11] != 0 {
			copy(in[12:], l4[4:8])
		}
	}
	copy(in[16:], ip[12:20])
	copy(in[24:], l4[:4])
	tag := siphash13(key, in)
	fold := uint16(tag ^ tag>>16 ^ tag>>32 ^ tag>>48)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(nil, fold), tag)
}

// mask masks or unmasks bytes 2 to 11 of the header.
func mask(frame []byte, key TagKey) {
	for i, m := range tagMask(frame, key) {
		frame[44+i] ^= m
	}
}

// tagged returns an encapsulated frame (wrap) with a tag.
func tagged(frame []byte, number uint64, key TagKey) []byte {
	f := bytes.Clone(frame)
	f[42], f[43], f[44] = 2, f[43]|f[44]<<3|byte(number)<<6, 0
	mask(f, key)
	return f
}

// untag turns what a gate has tagged into what it would be without a tag.
func untag(t testing.TB, frame []byte, number uint64, key TagKey) []byte {
	t.Helper()
	if len(frame) < ethernetHeader+outerLen+20 || frame[42] != 2 || frame[43]>>6 != byte(number&3) {
		t.Fatalf("no tag of key %d: %x", number, frame)
	}
	f := bytes.Clone(frame)
	mask(f, key)
	if f[44] != 0 {
		t.Errorf("flags and scales %x", f[44:46])
	}
	f[42], f[43], f[44] = 1, f[43]&7, f[43]>>3&7
	return f
}

// A host on the nodes' network can send from any address, but has no key.
func TestForgedEncapsulationReachesNoPod(t *testing.T) {
	all := newRemoteWorld(t, nil)
	all.must(all.g.SetTagKeys(tagKeys))
	for name, c := range map[string]struct {
		change  func(w *world, f []byte) []byte
		counted string // empty: it is accepted
	}{
		"tagged": {func(_ *world, f []byte) []byte { return f }, ""},
		"with the next key": {func(w *world, _ []byte) []byte {
			return tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), 8, tagKeys.Keys[1])
		}, ""},
		"without a tag": {func(w *world, _ []byte) []byte {
			return w.wrap(otherNode, toPodType, 0, 1, synFrame(w))
		}, "untagged"},
		"with another key": {func(w *world, _ []byte) []byte {
			return tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), 7, TagKey{9})
		}, "bad_tag"},
		"with a key that is no longer valid": {func(w *world, _ []byte) []byte {
			return tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), 6, tagKeys.Keys[0])
		}, "bad_tag"},
		"with a key that was never set": {func(w *world, _ []byte) []byte {
			return tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), 9, TagKey{})
		}, "bad_tag"},
		"flags":              {flip(43, 8), "bad_tag"},
		"key":                {flip(43, 0xc0), "bad_tag"},
		"type":               {flip(43, 1), "bad_tag"},
		"masked flags":       {flip(44, 1), "bad_tag"},
		"masked scales":      {flip(45, 1), "bad_tag"},
		"version":            {flip(42, 4), "bad_encap"},
		"client address":     {flip(66+3, 1), "bad_tag"},
		"service address":    {flip(70+3, 1), "bad_tag"},
		"client port":        {flip(74+1, 1), "bad_tag"},
		"service port":       {flip(76+1, 1), "bad_tag"},
		"sequence number":    {flip(78+3, 1), "bad_tag"},
		"a RST":              {flip(87, 4), "bad_tag"},
		"no longer a SYN":    {flip(87, 0x12), "bad_tag"},
		"another node's tag": {flip(29, 0x40), "bad_tag"}, // 10.46.200.66
	} {
		w := all.in(t)
		w.must(w.g.SetNodes(tagging(otherNode, stranger)))
		w.service(vip, 100, 100)
		w.addPod(vip, 1)
		w.before = w.counters()
		f := c.change(w, tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), 7, tagKeys.Keys[0]))
		verdict, out := w.run(onNIC, f)
		if c.counted == "" {
			if verdict != tcxRedirect || podOf(t, out) != 1 {
				t.Errorf("%s: verdict %d", name, int32(verdict))
			}
			continue
		}
		if got := w.counted(); verdict != tcxDrop || !maps.Equal(got, map[string]uint64{c.counted: 1}) {
			t.Errorf("%s: verdict %d, counted %v, want one %s", name, int32(verdict), got, c.counted)
		}
		w.wantCounts(0, 0, 0)
	}
}

// flip returns a function that changes bits of a byte.
func flip(at int, by byte) func(*world, []byte) []byte {
	return func(_ *world, f []byte) []byte {
		f[at] ^= by
		return f
	}
}

// Segments of a packet share its tag, which therefore covers no sequence number of data.
func TestTagHoldsForAllSegmentsOfAFlow(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.must(w.g.SetTagKeys(tagKeys))
	w.must(w.g.SetNodes(tagging(otherNode)))
	a := tagged(w.wrap(otherNode, toPodType, 0, 1, w.fromClient("A", 1001, 5001, 1).frame()), 7, tagKeys.Keys[0])
	b := tagged(w.wrap(otherNode, toPodType, 0, 1, w.fromClient("PFA", 9999, 6001, 2, 3).frame()), 7, tagKeys.Keys[0])
	if !bytes.Equal(a[42:54], b[42:54]) {
		t.Errorf("%x and %x", a[42:54], b[42:54])
	}
}

// Every kind of packet gets a tag, with the key that is to be used, and is what it would be without one.
func TestPacketsToNodesThatTagAreTagged(t *testing.T) {
	all := newRemoteWorld(t, nil)
	for _, second := range []bool{false, true} {
		w := all.in(t)
		keys := tagKeys
		keys.Second = second
		number, key := keys.First, keys.Keys[0]
		if second {
			number, key = number+1, keys.Keys[1]
		}
		w.must(w.g.SetTagKeys(keys))
		w.must(w.g.SetNodes(tagging(otherNode)))
		w.remote()
		sent := func(out []byte) []byte { return untag(t, out, number, key) }
		syn := synFrame(w)
		sameButMSS(t, syn, w.unwrap(sent(w.wantRun(onNIC, syn, tcxRedirect)), toPodType, 0, 1, syn))
		reply := w.asSent(w.fromPod(1, "SA", 5000, 1001))
		w.wantRun(onNIC, tagged(w.wrap(otherNode, toClientType, 0, 1, reply.frame()), number, key), tcxRedirect)
		w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
		w.wantCounts(1, 0, 1)
		data := dataFrame(w)
		if got := w.unwrap(sent(w.wantRun(onNIC, data, tcxRedirect)), toPodType, 0, 1, data); !bytes.Equal(got, data) {
			t.Errorf("changed: %x", got)
		}
		inner := w.fragNeeded(w.asSent(podData(w)), 1400)
		w.unwrap(sent(w.wantRun(onNIC, inner, tcxRedirect)), toPodType, inside, 1, inner)
		// A pod that this node does not have: the RST is for the edge node.
		f := w.fromClient("PA", 1, 2, 3).frame()
		like := append(append(bytes.Clone(f[6:12]), f[:6]...), f[12:]...)
		in := tagged(w.wrap(otherNode, toPodType, 0, 9, f), number, key)
		w.unwrap(sent(w.wantRun(onNIC, in, tcxRedirect)), toClientType, closes|left, 9, like)
	}
}

// Nodes of the version before neither send tags nor understand them.
func TestNodesWithoutTagsAreUnderstood(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.must(w.g.SetTagKeys(tagKeys))
	w.must(w.g.SetNodes(plain(otherNode)))
	w.remote()
	w.unwrap(w.wantRun(onNIC, synFrame(w), tcxRedirect), toPodType, 0, 1, synFrame(w))
	reply := w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "SA", 5000, 1001)).frame())
	w.wantRun(onNIC, reply, tcxRedirect)
	// It opens tagged packets now, but may not tag all of its own yet.
	w.must(w.g.SetNodes([]Node{{Addr: otherNode, Tags: true}}))
	w.wantRun(onNIC, reply, tcxRedirect)
	data := dataFrame(w)
	w.unwrap(untag(t, w.wantRun(onNIC, data, tcxRedirect), 7, tagKeys.Keys[0]), toPodType, 0, 1, data)
	// From now on it does, whatever the next daemon knows, unless it is back at the version before.
	w.must(w.g.SetNodes(tagging(otherNode)))
	w.wantRun(onNIC, reply, tcxDrop)
	w.must(w.g.SetNodes([]Node{{Addr: otherNode, Tags: true}}))
	w.must(w.g.AddNode(otherNode))
	w.wantRun(onNIC, reply, tcxDrop)
	w.must(w.g.SetNodes(plain(otherNode)))
	w.wantRun(onNIC, reply, tcxRedirect)
}

// At each step, nodes that have taken it and those that have not understand each other.
func TestTagKeysRotateWithoutLoss(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.must(w.g.SetNodes(tagging(otherNode)))
	w.service(vip, 100, 100)
	w.addPod(vip, 1)
	key := func(n uint64) TagKey { return TagKey{byte(n), 99} }
	accepts := func(n uint64) bool {
		verdict, _ := w.run(onNIC, tagged(w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), n, key(n)))
		return verdict == tcxRedirect
	}
	for first := uint64(1); first < 9; first++ {
		for _, second := range []bool{false, true} {
			w.must(w.g.SetTagKeys(TagKeys{First: first, Keys: [2]TagKey{key(first), key(first + 1)}, Second: second}))
			for n := uint64(0); n < 12; n++ {
				if want := n == first || n == first+1; accepts(n) != want {
					t.Errorf("keys %d and %d: key %d accepted: %v", first, first+1, n, !want)
				}
			}
		}
	}
}

// The keys and what is known of nodes outlive the daemon.
func TestTagKeysOutliveTheDaemon(t *testing.T) {
	w := &world{TB: t, nic: veth(t, "nic")}
	sh(t, "ip addr add %v/24 dev nic", thisNode)
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, EncapPort: encapPort,
		NodeAddr: thisNode}
	t.Cleanup(func() { w.must(Remove(cfg.Dir)) })
	var err error
	w.g, err = Open(cfg)
	w.must(err)
	if first, err := w.g.FirstTagKey(); first != 0 || err != nil {
		t.Errorf("first key of a new gate: %d, %v", first, err)
	}
	w.must(w.g.SetTagKeys(tagKeys))
	w.must(w.g.SetNodes(tagging(otherNode)))
	w.must(w.g.Close())
	w.g, err = Open(cfg)
	w.must(err)
	defer func() { w.must(w.g.Close()) }()
	if first, err := w.g.FirstTagKey(); first != tagKeys.First || err != nil {
		t.Errorf("first key %d, %v", first, err)
	}
	f := w.wrap(otherNode, toPodType, 0, 1, w.syn(1).frame())
	w.before = w.counters()
	w.wantRun(onNIC, f, tcxDrop)
	w.wantRun(onNIC, tagged(f, 7, tagKeys.Keys[0]), tcxRedirect) // no such pod: a RST
	if got := w.counted(); !maps.Equal(got, map[string]uint64{"untagged": 1, "stray": 1}) {
		t.Errorf("counted %v in %s", got, filepath.Base(cfg.Dir))
	}
}

// FuzzTaggedHeader gives the gate any header from a node that tags all packets. It opens exactly those whose tag is
// right.
func FuzzTaggedHeader(f *testing.F) {
	w := newRemoteWorld(f, smallTables)
	w.must(w.g.SetTagKeys(tagKeys))
	w.must(w.g.SetNodes(tagging(otherNode)))
	seed := *w
	for typ := range byte(6) {
		good := tagged(seed.wrap(otherNode, typ, 0, 1, seed.syn(1).frame()), 7, tagKeys.Keys[0])
		f.Add(good[42:54], good[54:])
	}
	f.Fuzz(func(t *testing.T, header, inner []byte) {
		if len(header) != 12 || len(inner) > 1400 {
			return
		}
		sub := *w
		sub.TB = t
		frame := sub.wrap(otherNode, toPodType, 0, 1, sub.syn(1).frame())[:ethernetHeader+outerLen]
		copy(frame[42:], header)
		binary.BigEndian.PutUint16(frame[16:], uint16(outerLen+len(inner)))
		binary.BigEndian.PutUint16(frame[38:], uint16(20+len(inner)))
		frame = append(frame, inner...)
		sub.before = sub.counters()
		verdict, _ := sub.run(onNIC, frame)
		dropped := sub.counted()
		opened := dropped["bad_tag"]+dropped["untagged"]+dropped["bad_encap"] == 0
		if !opened {
			if verdict != tcxDrop {
				t.Fatalf("verdict %d for\n%x", int32(verdict), frame)
			}
			return
		}
		slot := uint64(header[1] >> 6)
		if header[0] != 2 || slot != 7&3 && slot != 8&3 {
			t.Fatalf("opened\n%x", frame)
		}
		key := tagKeys.Keys[0]
		if slot == 8&3 {
			key = tagKeys.Keys[1]
		}
		if mask(frame, key); frame[44] != 0 || frame[45] != 0 && header[1]&7 != flowClaimType {
			t.Fatalf("opened\n%x", frame)
		}
	})
}

// BenchmarkEncapsulate reports the time of a segment to a pod on another node, without and with a tag.
func BenchmarkEncapsulate(b *testing.B) {
	all := newRemoteWorld(b, nil)
	for name, nodes := range map[string][]Node{"plain": plain(otherNode), "tagged": tagging(otherNode)} {
		b.Run(name, func(b *testing.B) {
			w := all.in(b)
			w.must(w.g.SetTagKeys(tagKeys))
			w.must(w.g.SetNodes(nodes))
			w.remote()
			w.wantRun(onNIC, synFrame(w), tcxRedirect)
			var took []float64
			f := w.fromClient("A", 1001, 5001).frame()
			for b.Loop() {
				took = append(took, float64(w.runs(onNIC, f, 1).took))
			}
			reportMedian(b, took)
		})
	}
}
