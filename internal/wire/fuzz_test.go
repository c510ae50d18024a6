// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// fuzzMessage checks that a message that decodes encodes to the same bytes again.
func fuzzMessage(f *testing.F, kind Type) {
	v := readVectors(f)
	for _, m := range v.Messages {
		if Type(m.Type) == kind {
			f.Add(unhex(f, m.Encoded)[1:])
		}
	}
	for _, m := range v.Refused["message"] {
		f.Add(unhex(f, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := append([]byte{byte(kind)}, b...)
		m, err := decode(whole)
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil || !bytes.Equal(again, whole) {
			t.Fatalf("%x decodes to %+v, which encodes to %x (%v)", whole, m, again, err)
		}
		twice, err := decode(again)
		if err != nil || !reflect.DeepEqual(twice, m) {
			t.Fatalf("%+v comes back as %+v (%v)", m, twice, err)
		}
		if s, ok := m.(timed); ok {
			convertTimes(s, -time.Second, math.MaxInt64)
			if _, err := encode(m); err != nil {
				t.Fatalf("after a shift: %v", err)
			}
		}
	})
}

func FuzzSync(f *testing.F)      { fuzzMessage(f, TypeSync) }
func FuzzWake(f *testing.F)      { fuzzMessage(f, TypeWake) }
func FuzzMoved(f *testing.F)     { fuzzMessage(f, TypeMoved) }
func FuzzRefuse(f *testing.F)    { fuzzMessage(f, TypeRefuse) }
func FuzzBackends(f *testing.F)  { fuzzMessage(f, TypeBackends) }
func FuzzListening(f *testing.F) { fuzzMessage(f, TypeListening) }
func FuzzUnready(f *testing.F)   { fuzzMessage(f, TypeUnready) }
func FuzzTrace(f *testing.F)     { fuzzMessage(f, TypeTrace) }
func FuzzStats(f *testing.F)     { fuzzMessage(f, TypeStats) }
func FuzzIdle(f *testing.F)      { fuzzMessage(f, TypeIdle) }
func FuzzQuiet(f *testing.F)     { fuzzMessage(f, TypeQuiet) }
func FuzzNodes(f *testing.F)     { fuzzMessage(f, TypeNodes) }
func FuzzNodesTags(f *testing.F) { fuzzMessage(f, TypeNodesTags) }
func FuzzTagKeys(f *testing.F)   { fuzzMessage(f, TypeTagKeys) }
func FuzzTagReady(f *testing.F)  { fuzzMessage(f, TypeTagReady) }
func FuzzNode(f *testing.F)      { fuzzMessage(f, TypeNode) }
func FuzzPodReport(f *testing.F) { fuzzMessage(f, TypePodReport) }
func FuzzUsage(f *testing.F)     { fuzzMessage(f, TypeUsage) }
func FuzzAnswers(f *testing.F)   { fuzzMessage(f, TypeAnswers) }
func FuzzLoads(f *testing.F)     { fuzzMessage(f, TypeLoads) }
func FuzzDeaf(f *testing.F)      { fuzzMessage(f, TypeDeaf) }
func FuzzDenied(f *testing.F)    { fuzzMessage(f, TypeDenied) }
func FuzzCaller(f *testing.F)    { fuzzMessage(f, TypeCaller) }
func FuzzAlert(f *testing.F)     { fuzzMessage(f, TypeAlert) }
func FuzzInspect(f *testing.F)   { fuzzMessage(f, TypeInspect) }
func FuzzGateState(f *testing.F) { fuzzMessage(f, TypeGateState) }
func FuzzConnected(f *testing.F) { fuzzMessage(f, TypeConnected) }

func FuzzImages(f *testing.F)       { fuzzMessage(f, TypeImages) }
func FuzzImageReports(f *testing.F) { fuzzMessage(f, TypeImageReports) }
func FuzzImagePulled(f *testing.F)  { fuzzMessage(f, TypeImagePulled) }

func FuzzUnreadable(f *testing.F) { fuzzMessage(f, TypeUnreadable) }

func FuzzPodLog(f *testing.F)  { fuzzMessage(f, TypePodLog) }
func FuzzSockets(f *testing.F) { fuzzMessage(f, TypeSockets) }
func FuzzMirror(f *testing.F)  { fuzzMessage(f, TypeMirror) }
func FuzzBlobs(f *testing.F)   { fuzzMessage(f, TypeBlobs) }
func FuzzFreeze(f *testing.F)  { fuzzMessage(f, TypeFreeze) }
func FuzzFrozen(f *testing.F)  { fuzzMessage(f, TypeFrozen) }
func FuzzMemory(f *testing.F)  { fuzzMessage(f, TypeMemory) }
func FuzzHolders(f *testing.F) { fuzzMessage(f, TypeHolders) }

func FuzzRepositories(f *testing.F) { fuzzMessage(f, TypeRepositories) }

// FuzzDatagram checks that a server accepts no datagram except the HELLO of the vectors, and that none creates a
// session.
func FuzzDatagram(f *testing.F) {
	v := readVectors(f)
	hello := unhex(f, v.Hello.Datagram)
	f.Add(hello)
	f.Add(unhex(f, v.Welcome.Datagram))
	for _, d := range v.Data {
		f.Add(unhex(f, d.Datagram))
	}
	for _, d := range v.Refused["datagram"] {
		f.Add(unhex(f, d))
	}
	conn := listen(f, "127.0.0.1:0")
	// Answers return to the same socket, which is never read.
	from := netip.MustParseAddrPort(conn.LocalAddr().String())
	key := Key(unhex(f, v.Key))
	s := &Server{
		hellos: newHelloKeys(key),
		cfg: ServerConfig{
			Conn: conn, Key: key, environment: environment{now: monotime.Now},
		},
		peers: map[uint64]*peer{}, nodes: map[string]*peer{},
	}
	f.Cleanup(func() { conn.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := s.receive(bytes.Clone(b), from)
		if err == nil && !bytes.Equal(b, hello) {
			t.Fatalf("%x is accepted", b)
		}
		if len(s.peers) != 0 || len(s.pending.list) > 1 {
			t.Fatal("a session was created")
		}
		if err != nil {
			s.counters.drop(err)
		}
	})
}

// FuzzPayload checks that frames that can be parsed encode to the same bytes again, and that malformed payloads have no
// effect.
func FuzzPayload(f *testing.F) {
	v := readVectors(f)
	for _, d := range v.Data {
		f.Add(unhex(f, d.Plaintext))
	}
	for _, p := range v.Refused["payload"] {
		f.Add(unhex(f, p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		err := parseFrames(b, func(fr *frame) {
			switch fr.kind {
			case frameAck:
				again = fr.ack.append(again)
			case frameKeepalive:
				again = fr.keepalive.append(again)
			case frameReliable:
				again = appendReliable(again, fr.seq, fr.flags, fr.data)
			case frameUnreliable:
				again = appendUnreliable(again, fr.data)
			case frameGoodbye:
				again = append(again, frameGoodbye, fr.reason)
			}
		})
		if err == nil && !bytes.Equal(again, b) || err != nil && again != nil {
			t.Fatalf("%x is read as %x (%v)", b, again, err)
		}
	})
}

// FuzzHandshake checks that plaintexts of HELLO and WELCOME that decode encode to the same bytes again.
func FuzzHandshake(f *testing.F) {
	v := readVectors(f)
	f.Add(unhex(f, v.Hello.Plaintext))
	f.Add(unhex(f, v.Hello.Datagram))
	f.Add(unhex(f, v.Welcome.Plaintext))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b, "node-1"); err == nil && !bytes.Equal(h.encode(), b) {
			t.Fatalf("%x is read as %+v", b, h)
		}
		if node, err := helloNode(b); err == nil && !bytes.Equal((&hello{node: node}).header()[clearHeader:],
			b[clearHeader:nodeHeader]) {
			t.Fatalf("%x is read as of node %s", b, node)
		}
		if w, err := decodeWelcome(b); err == nil && !bytes.Equal(w.encode(), b) {
			t.Fatalf("%x is read as %+v", b, w)
		}
	})
}
