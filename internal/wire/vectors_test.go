// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"
)

var update = flag.Bool("update", false, "write testdata/vectors.json")

const vectorsFile = "testdata/vectors.json"

// vectors is the content of the file for other implementations; see docs/protocol. Byte strings are hexadecimal.
type vectors struct {
	Comment      string `json:"comment"`
	Key          string `json:"key"`
	Node         string `json:"node"`
	NodeKey      string `json:"node_key"`
	HelloKey     string `json:"hello_key"`
	WelcomeKey   string `json:"welcome_key"`
	ClientRandom string `json:"client_random"`
	ServerRandom string `json:"server_random"`
	ToServerKey  string `json:"client_to_server_key"`
	ToClientKey  string `json:"server_to_client_key"`

	Hello   handshakeVector `json:"hello"`
	Welcome handshakeVector `json:"welcome"`

	Messages []messageVector     `json:"messages"`
	Data     []dataVector        `json:"data"`
	Table    tableVector         `json:"table"`
	Refused  map[string][]string `json:"refused"`
}

type handshakeVector struct {
	Nonce     string `json:"nonce"`
	Plaintext string `json:"plaintext"`
	Datagram  string `json:"datagram"`
}

type messageVector struct {
	Name    string `json:"name"`
	Type    uint8  `json:"type"`
	Fields  any    `json:"fields"`
	Encoded string `json:"encoded"`
}

type dataVector struct {
	Name      string `json:"name"`
	From      string `json:"from"`
	Session   string `json:"session"`
	Counter   uint64 `json:"counter"`
	Nonce     string `json:"nonce"`
	Plaintext string `json:"plaintext"`
	Datagram  string `json:"datagram"`
}

type tableVector struct {
	Entries []string `json:"entries"`
	Hashes  []string `json:"hashes"`
	Hash    string   `json:"hash"`
}

// counting returns n bytes that count up from a value.
func counting(from byte, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = from + byte(i)
	}
	return out
}

// makeVectors computes every vector from fixed keys, randoms and nonces.
func makeVectors(t testing.TB) vectors {
	t.Helper()
	key := Key(counting(0x00, KeySize))
	client, server := random(counting(0x20, randomSize)), random(counting(0x40, randomSize))
	const node = "node-1"
	nodeKey := key.ForNode(node)
	seals := newSessionSeals(nodeKey, client, server)
	hexKey := func(k Key) string { return hex.EncodeToString(k[:]) }
	v := vectors{
		Comment: "Test vectors of docs/protocol, version 3. Byte strings are hex. " +
			"Written by `go test ./internal/wire -run Vectors -update`.",
		Key: hexKey(key), Node: node, NodeKey: hexKey(nodeKey),
		HelloKey:     hexKey(keyFor(nodeKey, nil, useHello)),
		WelcomeKey:   hexKey(keyFor(nodeKey, nil, useWelcome)),
		ClientRandom: hex.EncodeToString(client[:]), ServerRandom: hex.EncodeToString(server[:]),
		ToServerKey: hexKey(sessionKey(nodeKey, client, server, useToServer)),
		ToClientKey: hexKey(sessionKey(nodeKey, client, server, useToClient)),
	}
	const clientID, serverID = 0x1111111111111111, 0x2222222222222222
	h := hello{
		client: client, session: clientID, boot: bootID(counting(0xa0, 16)),
		instance: 1_700_000_000_000_000_000, sent: 1_000_000_000, node: node,
	}
	helloNonce := [chacha20poly1305.NonceSizeX]byte(counting(0x60, 24))
	welcomeNonce := [chacha20poly1305.NonceSizeX]byte(counting(0x80, 24))
	v.Hello = handshakeVector{
		Nonce: hex.EncodeToString(helloNonce[:]), Plaintext: hex.EncodeToString(h.encode()),
		Datagram: hex.EncodeToString(h.seal(nodeKey, helloNonce)),
	}
	w := welcome{
		client: client, server: server, session: serverID, boot: bootID(counting(0xb0, 16)),
		instance: 1_700_000_000_000_000_001, sent: 2_000_000_200, echo: 1_000_000_000, echoArrived: 2_000_000_100,
	}
	v.Welcome = handshakeVector{
		Nonce: hex.EncodeToString(welcomeNonce[:]), Plaintext: hex.EncodeToString(w.encode()),
		Datagram: hex.EncodeToString(w.seal(nodeKey, welcomeNonce)),
	}

	sent := map[bool]uint64{} // counter of each direction
	data := func(name string, fromClient bool, payload []byte) {
		dv := dataVector{
			Name: name, From: "server", Counter: sent[fromClient], Plaintext: hex.EncodeToString(payload),
		}
		id, a := uint64(clientID), seals.toClient
		if fromClient {
			dv.From, id, a = "client", serverID, seals.toServer
		}
		sent[fromClient]++
		nonce := dataNonce(dv.Counter)
		dv.Session, dv.Nonce = fmt.Sprintf("%016x", id), hex.EncodeToString(nonce[:])
		d := append(beginData(nil, id, dv.Counter), payload...)
		dv.Datagram = hex.EncodeToString(sealData(a, d))
		v.Data = append(v.Data, dv)
	}
	data("first keepalive", true, keepalive{
		sent: 1_000_000_500, echo: 2_000_000_200, echoArrived: 1_000_000_400,
	}.append(nil))
	data("answer", false, keepalive{
		sent: 2_000_000_700, echo: 1_000_000_500, echoArrived: 2_000_000_600,
	}.append(nil))
	all := samples()
	seq := map[bool]uint64{}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range all {
			if !yield(n) {
				return
			}
		}
	}) {
		if strings.HasSuffix(name, "full") {
			continue
		}
		m := all[name]
		b, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		v.Messages = append(v.Messages, messageVector{
			Name: name, Type: uint8(m.Type()), Fields: m, Encoded: hex.EncodeToString(b),
		})
		fromClient := m.Type().FromDaemon() && m.Type() != TypeLoads // which go both ways
		if !reliable(m.Type()) {
			data(name, fromClient, appendUnreliable(nil, b))
			continue
		}
		var flags uint8
		if m.Type() == TypeBackends || m.Type() == TypeSync {
			flags = flagDone
		}
		data(name, fromClient, appendReliable(nil, seq[fromClient], flags, b))
		seq[fromClient]++
	}
	data("acknowledgement", true, ack{next: 3, bits: 0b101, done: 2}.append(nil))
	data("acknowledgement and a segment", false,
		appendReliable(ack{next: 4, done: 4}.append(nil), seq[false], flagMore, []byte{byte(TypeRefuse), 0xff}))
	data("goodbye", false, []byte{frameGoodbye, goodbyeClosed})
	data("goodbye, restarting", true, []byte{frameGoodbye, goodbyeRestarting})

	var sum uint64
	for _, s := range all["sync"].(*Sync).Upserts {
		v.Table.Entries = append(v.Table.Entries, hex.EncodeToString(s.append(nil)))
		v.Table.Hashes = append(v.Table.Hashes, fmt.Sprintf("%016x", hashEntry(&s)))
		sum += hashEntry(&s)
	}
	v.Table.Hash = fmt.Sprintf("%016x", sum)

	// What a receiver must drop.
	good, _ := hex.DecodeString(v.Hello.Datagram)
	spoil := func(at int, b byte) string {
		d := bytes.Clone(good)
		d[at] = b
		return hex.EncodeToString(d)
	}
	wakeBytes, _ := encode(all["wake"])
	v.Refused = map[string][]string{
		"datagram": {
			hex.EncodeToString(good[:3]), spoil(0, 'w'), spoil(2, 1), spoil(3, kindWelcome), spoil(4, 0),
			spoil(len(good)-1, 0), spoil(clearHeader, 7), spoil(clearHeader+1, 'N'), spoil(nodeHeader-1, 1),
			hex.EncodeToString(good[:len(good)-1]), hex.EncodeToString(append(bytes.Clone(good), 0)),
		},
		"payload": {
			"", "00", "06", "0500ff", hex.EncodeToString(ack{next: 1, done: 2}.append(nil)),
			hex.EncodeToString(appendReliable(nil, 0, 4, []byte{1})),
			hex.EncodeToString(appendReliable(nil, 0, 0, nil)),
			hex.EncodeToString(appendUnreliable(nil, nil)), hex.EncodeToString(keepalive{sent: -1}.append(nil)),
			hex.EncodeToString(make([]byte, 8)),
		},
		"message": {
			"", "00", "0b", "0c", hex.EncodeToString(append(bytes.Clone(wakeBytes), 0)),
			hex.EncodeToString(wakeBytes[:len(wakeBytes)-1]),
			hex.EncodeToString((&Wake{Service: netip.MustParseAddrPort("10.0.0.1:0")}).append([]byte{byte(TypeWake)})),
			hex.EncodeToString((&Wake{Service: service4, SYNSeen: -1}).append([]byte{byte(TypeWake)})),
			hex.EncodeToString((&Refuse{Service: service4, Reason: "\xff"}).append([]byte{byte(TypeRefuse)})),
			hex.EncodeToString((&Sync{
				Version: 1, Pieces: 1, Upserts: []Service{{Addr: service4, Flags: FlagRequests, Requests: Requests{Protocol: 4}}},
			}).append([]byte{byte(TypeSync)})),
			hex.EncodeToString((&Nodes{Pieces: 1, Nodes: []NodeInfo{{Name: "a"}}}).append([]byte{byte(TypeNodes)})),
			hex.EncodeToString((&Node{}).append([]byte{byte(TypeNode)})),
			hex.EncodeToString((&TagKeys{}).append([]byte{byte(TypeTagKeys)})),
			hex.EncodeToString(append((&TagKeys{First: 1}).append([]byte{byte(TypeTagKeys)})[:9],
				make([]byte, 2+32)...)),
			hex.EncodeToString(append([]byte{byte(TypeTagKeys), 0, 0, 0, 0, 0, 0, 0, 1, 2}, make([]byte, 32)...)),
			hex.EncodeToString((&PodReport{Event: 6, Service: "a/b", UID: "u"}).append([]byte{byte(TypePodReport)})),
		},
	}
	return v
}

func TestVectorsMatchTheCode(t *testing.T) {
	v := makeVectors(t)
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what the code generates: the protocol has changed. If that is intended, change its "+
			"version and run the test with -update", vectorsFile)
	}
}

func TestVectorsCanBeReadFromTheirBytesAlone(t *testing.T) {
	v := readVectors(t)
	master := Key(unhex(t, v.Key))
	h, key, err := openOne(unhex(t, v.Hello.Datagram), master)
	if err != nil || h.node != v.Node || !bytes.Equal(h.encode(), unhex(t, v.Hello.Plaintext)) {
		t.Fatalf("HELLO: %v: %+v", err, h)
	}
	if key != Key(unhex(t, v.NodeKey)) {
		t.Fatalf("key %x", key)
	}
	plain, err := openHandshake(handshakeSeal(key, useWelcome), unhex(t, v.Welcome.Datagram),
		clearHeader, welcomeSize)
	if err != nil {
		t.Fatal(err)
	}
	w, err := decodeWelcome(plain)
	if err != nil || w.client != h.client || !bytes.Equal(w.encode(), plain) {
		t.Fatalf("WELCOME: %v: %+v", err, w)
	}
	seals := newSessionSeals(key, h.client, w.server)
	for _, d := range v.Data {
		a := seals.toClient
		if d.From == "client" {
			a = seals.toServer
		}
		b := unhex(t, d.Datagram)
		if len(b) > maxDatagram {
			t.Errorf("%s: %d bytes", d.Name, len(b))
		}
		payload, err := openData(a, b)
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		if !bytes.Equal(payload, unhex(t, d.Plaintext)) {
			t.Errorf("%s: the plaintext differs", d.Name)
		}
		if err := parseFrames(payload, func(*frame) {}); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
	}
	for _, m := range v.Messages {
		got, err := decode(unhex(t, m.Encoded))
		if err != nil || !reflect.DeepEqual(got, samples()[m.Name]) {
			t.Errorf("%s: %v: %+v", m.Name, err, got)
		}
	}
	for _, d := range v.Refused["datagram"] {
		b := unhex(t, d)
		if kind, err := datagramKind(b); err == nil && kind == kindHello {
			if _, _, err := openOne(b, master); err == nil {
				t.Errorf("datagram %s is accepted", d)
			}
		}
	}
	for _, p := range v.Refused["payload"] {
		if parseFrames(unhex(t, p), func(*frame) { t.Errorf("payload %s: one of its frames is used", p) }) == nil {
			t.Errorf("payload %s is accepted", p)
		}
	}
	for _, m := range v.Refused["message"] {
		if got, err := decode(unhex(t, m)); err == nil {
			t.Errorf("message %s decodes to %+v", m, got)
		}
	}
}

func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	b, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
