// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
)

var (
	service4 = netip.MustParseAddrPort("10.46.100.105:80")
	service6 = netip.MustParseAddrPort("[fd00:46::105]:5432")
)

// samples returns one message of each type with every field set, and messages at their limits, by name.
func samples() map[string]Message {
	full := &Backends{Service: service6, Generation: 1 << 60}
	for i := range maxPods {
		full.Pods = append(full.Pods, Backend{
			PodID: uint64(i), State: PodServing, Addr: service6, NodeAddr: service6.Addr(),
			Node: strings.Repeat("n", maxNode), Netns: strings.Repeat("p", maxNetns),
			Probe:   strings.Repeat(string(rune('a'+i%MaxProbes)), MaxProbe),
			Runtime: strings.Repeat("r", 100), Open: 1<<(1+MaxFurtherPorts) - 1,
		})
		full.Targets = append(full.Targets, make([]uint16, MaxFurtherPorts))
	}
	nodes := &Nodes{Generation: 1 << 60, Pieces: 1}
	for range maxNodes {
		nodes.Nodes = append(nodes.Nodes, NodeInfo{Name: strings.Repeat("n", maxNode), Addr: service6.Addr()})
	}
	stats := &Stats{}
	for i := range MaxPodStats {
		stats.Pods = append(stats.Pods, PodStats{
			Service: service4, PodID: uint64(i), OpenFlows: 5, NewFlows: 6, BytesIn: 7, BytesOut: 8, LastPacket: 9,
		})
	}
	usage := &Usage{}
	for i := range MaxPodUsage {
		usage.Pods = append(usage.Pods, PodUsage{Service: service4, PodID: uint64(i), CPU: 5, Memory: 6, At: 7})
	}
	loads := &Loads{}
	for i := range MaxPodLoads {
		loads.Pods = append(loads.Pods, PodLoad{Service: service4, PodID: uint64(i), OpenFlows: 5})
	}
	answers := &Answers{At: 7}
	for i := range MaxPodAnswers {
		answers.Pods = append(answers.Pods, PodAnswers{Service: service4, PodID: uint64(i), Open: 5, Started: 6})
	}
	return map[string]Message{
		"sync": &Sync{
			Base: 6, Version: 7, Hash: 0x0123456789abcdef, Piece: 1, Pieces: 3,
			Upserts: []Service{
				{
					Addr: service4, Name: "default/serverless-example", IdleSeconds: 1800, MaxParked: 1024,
					MaxParkedPerSource: 512, Flags: FlagAnnounce | FlagAffinity, Retries: 2,
				},
				{Addr: service6, Name: "db/postgres", IdleSeconds: 300, MaxParked: 64, MaxParkedPerSource: 8},
				{
					Addr: netip.MustParseAddrPort("10.46.100.8:80"), Name: "default/restricted", Flags: FlagSources,
					Sources: NewSources([]sources.Rule{
						{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Allow: true},
						{Prefix: netip.MustParsePrefix("10.1.0.0/16")},
					}),
				},
				{Addr: netip.MustParseAddrPort("10.46.100.9:80"), Name: "default/closed", Flags: FlagSources},
				{
					Addr: netip.MustParseAddrPort("10.46.100.12:80"), Name: "default/web", IdleSeconds: 60, FreezeSeconds: 5,
					Ports: NewPorts([]Port{{Number: 443, Name: "https"}, {
						Number: 9113, Name: "metrics", Restricted: true, Sources: NewSources([]sources.Rule{
							{Prefix: netip.MustParsePrefix("10.2.0.0/16"), Allow: true},
						}),
					}}),
				},
				{
					Addr: netip.MustParseAddrPort("10.46.100.10:80"), Name: "default/shop", Flags: FlagRequests,
					Requests: Requests{Protocol: ProtocolHTTP2, ClientIdleSeconds: 3600, MaxPerPod: 100, WarmupSeconds: 30,
						Transparent: true},
				},
				{
					Addr: netip.MustParseAddrPort("10.46.100.11:80"), Name: "default/split", Flags: FlagRequests,
					Requests: Requests{ClientIdleSeconds: 3600, TrustedProxies: proxies(2), Traffic: NewTraffic(
						Sticky{Kind: StickyCookie, Name: "revision", MaxAgeSeconds: 86400},
						[]Revision{{Service: "default/v1", Percent: 90}, {Service: "default/v2", Percent: 10, Tag: "canary"}},
					)},
				},
			},
			Removals: []netip.AddrPort{netip.MustParseAddrPort("10.46.100.7:6379")},
		},
		"caller":  &Caller{Service: service4, TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}, Flags: 1},
		"denied":  &Denied{Service: service4, Total: 7, Source: netip.MustParseAddr("192.0.2.1")},
		"inspect": &Inspect{Number: 7, Most: 500},
		"gate state": &GateState{
			Number: 7, Tables: []GateTable{{"flows", 5, 262_144}, {"parked", 0, 65_536}},
			Counters: []GateCounter{{"arp_replies", 1 << 40}}, Interfaces: []GateInterface{{"eth0", "native"}},
		},
		"gate state none": &GateState{},
		"gate state full": fullGateState(),
		"connected": &Connected{Number: 8, Others: 9, Pairs: []ConnectedPair{
			{netip.MustParseAddr("192.0.2.1"), service4, 3}, {netip.MustParseAddr("2001:db8::7"), service6, 1},
		}},
		"alert": &Alert{Kind: AlertSourceWakes, Service: service4,
			Source: netip.MustParsePrefix("192.0.2.0/24")},
		"alert of a table": &Alert{Kind: AlertFlows, Used: 210_000, Size: 262_144},
		"alert of a share": &Alert{Kind: AlertServiceFlows, Over: true, Service: service6, Used: 8, Size: 9},
		"alert of a client": &Alert{Kind: AlertSourceFlows, Source: netip.MustParsePrefix("2001:db8::7/128"), Used: 8,
			Size: 9},
		"images": &Images{Generation: 3, Piece: 1, Pieces: 2, Images: []WantedImage{
			{Ref: "registry.example/app:v1", Policy: ImageIfNotPresent},
			{Ref: "nginx", Policy: ImageAlways, Revision: 0x0123456789abcdef},
		}},
		"images lazily": &Images{Generation: 5, Pieces: 1, Images: []WantedImage{
			{Ref: "model", Policy: ImageNever, Lazy: true},
			{Ref: "other", Policy: ImageIfNotPresent, Lazy: true, Revision: 7},
		}},
		"images none": &Images{Generation: 4, Pieces: 1},
		"images full": NewImages(1<<60, slices.Repeat([]WantedImage{
			{Ref: strings.Repeat("i", MaxImageText), Policy: ImageNever, Revision: 1 << 60},
		}, MaxImages))[maxImagePieces-1],
		"image reports": &ImageReports{Images: []ImageReport{
			{Ref: "nginx", State: ImagePresent, Digest: "nginx@sha256:" + strings.Repeat("a", 64), Size: 7 << 30,
				Since: 1_000_900_000, Volumes: []string{"/data", "/var/log"}},
			{Ref: "registry.example/app:v1", State: ImageFailed, Reason: "NotFound",
				Since: 1_000_950_000, Message: "not found in registry (pull 404): check spec.image"},
		}},
		"image reports full": &ImageReports{Images: slices.Repeat([]ImageReport{{
			Ref: strings.Repeat("i", MaxImageText), State: ImageFailed, Reason: strings.Repeat("r", maxImageReason),
			Digest: strings.Repeat("d", maxImageDigest), Message: strings.Repeat("m", MaxImageText), Since: 7,
			Volumes: slices.Repeat([]string{strings.Repeat("v", MaxImageText/MaxImageVolumes)}, MaxImageVolumes),
		}}, MaxImageReports)},
		"image pulled":      &ImagePulled{Ref: "nginx", Done: 7 << 30, Total: 8 << 30},
		"image pulled full": &ImagePulled{Ref: strings.Repeat("i", MaxImageText), Done: 1 << 60, Total: 1 << 60},
		"repositories": &Repositories{Generation: 6, Piece: 1, Pieces: 2, Names: []string{
			"docker.io/library/nginx", "registry.example/app",
		}},
		"repositories none": &Repositories{Generation: 7, Pieces: 1},
		"repositories full": NewRepositories(1<<60,
			slices.Repeat([]string{strings.Repeat("i", MaxImageText)}, MaxRepositories))[maxNamePieces-1],
		"mirror": &Mirror{Addr: service4, Fingerprint: [32]byte{1, 2, 3}},
		"blobs": &Blobs{Repository: "docker.io/library/nginx", NoRegistry: true, Blobs: []Blob{
			{Digest: BlobDigest{1}, Size: 600e6, State: BlobPartial, Have: []byte{0x0f, 0x80}},
			{Digest: BlobDigest{2}, Size: 7, State: BlobComplete},
			{Digest: BlobDigest{3}, State: BlobGone},
		}},
		"blobs full": &Blobs{Repository: strings.Repeat("i", MaxImageText), Blobs: slices.Repeat([]Blob{
			{Size: 1 << 60, State: BlobPartial, Have: bytes.Repeat([]byte{0xff}, MaxBlobSet)},
		}, MaxBlobs)},
		"holders": &Holders{
			Repository: "docker.io/library/nginx", Digest: BlobDigest{1}, Size: 600e6, PauseMillis: 200, Lease: []byte{0x10},
			Expires: 1_800_000_000, Holders: []Holder{
				{Mirror: Mirror{Addr: service4, Fingerprint: [32]byte{4}}, Grant: [32]byte{5}, Have: []byte{0x03}},
				{Mirror: Mirror{Addr: service6, Fingerprint: [32]byte{6}}, Grant: [32]byte{7}, Complete: true},
			},
		},
		"holders full": &Holders{
			Repository: strings.Repeat("i", MaxImageText), Lease: bytes.Repeat([]byte{0xff}, MaxBlobSet),
			Holders: slices.Repeat([]Holder{
				{Mirror: Mirror{Addr: service6}, Have: bytes.Repeat([]byte{0xff}, MaxBlobSet)},
			}, MaxHolders),
		},
		"sync empty": &Sync{Version: 1, Pieces: 1},
		"wake":       &Wake{Service: service4, Seq: 3, SYNSeen: 1_000_000_001, Noticed: 1_000_050_002, Parked: 2},
		"moved":      &Moved{From: service4, To: service6, DrainMillis: 30_000},
		"refuse":     &Refuse{Service: service4, Reason: "image \"x\" not found"},
		"backends": &Backends{Service: service4, Generation: 9, Sharing: 3, Pods: []Backend{
			{
				PodID: 1, State: PodServing, Addr: netip.MustParseAddrPort("10.46.128.2:8080"), Node: "node-1",
				Netns: "/run/wangell/netns/a",
			},
			{PodID: 2, State: PodStarting, Node: "node-2", NodeAddr: netip.MustParseAddr("192.0.2.2")},
		}},
		"backends none": &Backends{Service: service4, Generation: 10},
		"backends full": full,
		"backends with probes": &Backends{Service: service4, Generation: 11, Pods: []Backend{
			{PodID: 1, State: PodStarting, Netns: "/run/netns/a", Probe: "first", Runtime: "web-1"},
			{PodID: 2, State: PodStarting},
			{PodID: 3, State: PodStarting, Probe: "second"},
			{PodID: 4, State: PodStarting, Probe: "first", Runtime: "web-4"},
		}},
		"backends with ports": &Backends{Service: service4, Generation: 12, Pods: []Backend{
			{PodID: 1, State: PodServing, Addr: netip.MustParseAddrPort("10.46.128.2:8080"), Open: 0b101},
			{PodID: 2, State: PodStarting},
		}, Targets: [][]uint16{{8443, 9113}, {8443, 9114}}},
		"backends with ports and probes": &Backends{Service: service4, Generation: 13, Sharing: 2, Pods: []Backend{
			{PodID: 1, State: PodStarting, Netns: "/run/netns/a", Probe: "first", Runtime: "web-1"},
		}, Targets: [][]uint16{{8443}}},
		"pod log":      &PodLog{UID: "5a1f", Container: "main", Text: "panic: no configuration\n"},
		"pod log full": &PodLog{UID: strings.Repeat("u", maxUID), Text: strings.Repeat("x", MaxPodLog)},
		"unreadable":   &Unreadable{UID: "5a1f", Cause: "/a of image r.example/a:1 cannot be had from registry r.example"},
		"sockets": &Sockets{Service: service4, PodID: 1, At: []netip.AddrPort{
			netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("0.0.0.0:9000"),
			netip.MustParseAddrPort("[::]:9001"), netip.MustParseAddrPort("[::1]:8080"),
		}},
		"sockets none": &Sockets{Service: service6, PodID: 2},
		"unready":      &Unready{Service: service4, PodID: 1, At: 1_000_900_000, Answer: "httpGet: status 503"},
		"unready for good": &Unready{
			Service: service4, PodID: 1, At: 1_000_900_000, Answer: "startupProbe: exec: exit code 1", Failed: true,
		},
		"freeze": &Freeze{Service: service4, Seq: 12, Reclaim: true, UnlessBusy: true, Pods: []FrozenPod{
			{PodID: 1, LastPacket: 1_002_000_000, Cgroup: "/wangell/wangell/web-1"},
			{PodID: 2, LastPacket: 1_002_000_001}, // in a cluster
		}},
		"memory": &Memory{Available: 180 << 20, Total: 4 << 30},
		"frozen": &Frozen{
			Service: service4, PodID: 1, Seq: 12, Frozen: true, At: 1_006_000_000, Resident: 12 << 20, Swapped: 214 << 20,
			Reason: "its memory stays: the machine has no swap",
		},
		"deaf":      &Deaf{Service: service4, PodID: 1, At: 1_005_000_000},
		"listening": &Listening{Service: service4, PodID: 1, At: 1_000_900_000},
		"trace": &Trace{
			Service: service4, PodID: 1, Released: 1_000_910_000, FirstSYNACK: 1_000_920_000, FirstByte: 1_001_000_000,
			ReleasedN: 2,
		},
		"stats": &Stats{Pods: []PodStats{{
			Service: service4, PodID: 1, OpenFlows: 2, NewFlows: 30, BytesIn: 4000, BytesOut: 50000,
			LastPacket: 1_002_000_000,
		}}},
		"stats full": stats,
		"idle":       &Idle{Service: service4, LastPacket: 1_002_000_000},
		"quiet":      &Quiet{Service: service4, PodID: 1, Generation: 11, LastPacket: 1_002_000_000, OpenFlows: 1},
		"nodes": &Nodes{Generation: 12, Piece: 1, Pieces: 2, Nodes: []NodeInfo{
			{Name: "node-1", Addr: netip.MustParseAddr("192.0.2.1")},
			{Name: "node-2", Addr: netip.MustParseAddr("fd00::2")},
		}},
		"nodes none": &Nodes{Generation: 13, Pieces: 1},
		"nodes with tags": &Nodes{WithTags: true, Generation: 14, Pieces: 1, Nodes: []NodeInfo{
			{Name: "node-1", Addr: service4.Addr(), Tags: true}, {Name: "node-2", Addr: service6.Addr()},
		}},
		"tag keys": &TagKeys{First: 20780, Second: true, Keys: [2][TagKeySize]byte{
			[TagKeySize]byte(counting(0x10, TagKeySize)), [TagKeySize]byte(counting(0xe0, TagKeySize)),
		}},
		"tag ready":  &TagReady{First: 20780},
		"nodes full": nodes,
		"node":       &Node{Addr: netip.MustParseAddr("192.0.2.1")},
		"report of a pod": &PodReport{
			Event: 4, Service: "default/serverless-example", UID: "0c9a3a8e-9a3c-4b6f-8a56-0f6c2f5f3f5e",
			Name: "serverless-example-7d9f-x2x4z", Container: "main", Addr: netip.MustParseAddr("10.244.1.7"),
			Netns: "/var/run/netns/cni-1", SpecHash: "5f3a", At: 1_003_000_000, Code: 137,
		},
		"usage": &Usage{Pods: []PodUsage{
			{Service: service4, PodID: 1, CPU: 12_345_678_901, Memory: 64 << 20, At: 1_004_000_000},
			{Service: service6, PodID: 2, At: 1_004_000_001},
		}},
		"usage full": usage,
		"loads": &Loads{Pods: []PodLoad{
			{Service: service4, PodID: 1, OpenFlows: 12}, {Service: service6, PodID: 2},
		}},
		"loads full": loads,
		"answers": &Answers{At: 1_004_000_000, Pods: []PodAnswers{
			{Service: service4, PodID: 1, Open: 3, Started: 1000, Answered: [Classes]uint64{1, 2, 900, 4, 50, 6}},
			{Service: service6, Open: 7},
		}},
		"answers full": answers,
		"report of a pod's network": &PodReport{
			Event: 1, Service: "db/postgres", UID: "u", Name: "postgres-0", At: 1_003_000_000,
		},
	}
}

// fullGateState is the largest GateState.
func fullGateState() *GateState {
	name := strings.Repeat("x", maxGateName)
	return &GateState{
		Tables:     slices.Repeat([]GateTable{{Name: name}}, MaxGateTables),
		Counters:   slices.Repeat([]GateCounter{{Name: name}}, MaxGateCounters),
		Interfaces: slices.Repeat([]GateInterface{{Name: name, Mode: name}}, MaxGateInterfaces),
	}
}

func TestDecodingAnEncodedMessageReturnsIt(t *testing.T) {
	for name, m := range samples() {
		b, err := encode(m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := decode(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: %v: got %+v, want %+v", name, err, got, m)
		}
		for n := 0; n < len(b); n += 1 + len(b)/4096 {
			if s, ok := m.(*Backends); ok && slices.Contains(requiredParts(t, s), n) {
				continue // what follows is optional
			}
			if u, ok := m.(*Unready); ok && u.Failed && n == len(b)-1 {
				continue // likewise
			}
			if m, err := decode(b[:n]); err == nil {
				t.Errorf("%s cut to %d of %d bytes decodes to %+v", name, n, len(b), m)
			}
		}
		if _, err := decode(append(b, 0)); err == nil || !strings.Contains(err.Error(), "trailing") {
			t.Errorf("%s with a trailing byte: error %v", name, err)
		}
	}
}

// requiredParts returns the lengths to which a message may be cut: without all that is optional, and without its
// Targets.
func requiredParts(t *testing.T, m *Backends) (lengths []int) {
	t.Helper()
	for _, probes := range []bool{false, true} {
		short := *m
		short.Pods, short.Targets = slices.Clone(m.Pods), nil
		for i := range short.Pods {
			if short.Pods[i].Open = 0; !probes {
				short.Sharing, short.Pods[i].Probe, short.Pods[i].Runtime = 0, "", ""
			}
		}
		b, err := encode(&short)
		if err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, len(b))
		if short.Sharing = m.Sharing; !probes && m.Sharing > 0 {
			lengths = append(lengths, len(b)+1)
		}
	}
	return lengths
}

func TestLargestMessagesFitTheirLimits(t *testing.T) {
	for name, most := range map[string]int{
		"backends full": maxMessage, "nodes full": maxMessage,
		"images full": maxMessage, "image reports full": maxMessage, "gate state full": maxMessage,
		"stats full": maxPayload - unreliableHeader, "usage full": maxPayload - unreliableHeader,
		"loads full": maxPayload - unreliableHeader,
	} {
		b, err := encode(samples()[name])
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > most {
			t.Errorf("%s has %d bytes, at most %d", name, len(b), most)
		}
	}
}

func TestMessagesOutsideTheirLimitsAreRejectedWithAReason(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	net24 := netip.MustParsePrefix("192.0.2.0/24")
	for _, c := range []struct {
		m    Message
		want string
	}{
		{&Wake{}, "no address"},
		{&Wake{Service: netip.MustParseAddrPort("10.0.0.1:0")}, "port 0"},
		{&Wake{Service: netip.MustParseAddrPort("0.0.0.0:80")}, "no address"},
		{&Wake{Service: netip.MustParseAddrPort("[fe80::1%eth0]:80")}, "zone"},
		{&Wake{Service: netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")}, "IPv4"},
		{&Wake{Service: service4, Noticed: -1}, "negative time"},
		{&Refuse{Service: service4, Reason: long(MaxReason + 1)}, "201 bytes, at most 200"},
		{&Refuse{Service: service4, Reason: "\xff"}, "UTF-8"},
		{&Backends{Service: service4, Pods: make([]Backend, maxPods+1)}, "65 pods, at most 64"},
		{&Backends{Service: service4, Sharing: maxPods + 1}, "65 pods share the parked SYNs"},
		{&Backends{Service: service4, Pods: []Backend{{PodID: 4}}}, "pod 4: unknown state 0"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodServing}}}, "no address"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting, Node: long(254)}}}, "254 bytes"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting, Netns: long(256)}}}, "256 bytes"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting, Probe: long(MaxProbe + 1)}}}, "2305 bytes"},
		{&Unready{Service: service4, Answer: long(201)}, "201 bytes"},
		{&Memory{Available: 2, Total: 1}, "2 bytes available of 1"},
		{&PodLog{}, "without UID"},
		{&Sockets{Service: service4, At: slices.Repeat([]netip.AddrPort{service4}, MaxSockets+1)}, "17 sockets, at most 16"},
		{&Sockets{Service: service4, At: make([]netip.AddrPort, 1)}, "a socket at"},
		{&Sockets{At: []netip.AddrPort{service4}}, "service"},
		{&PodLog{UID: "u", Text: long(MaxPodLog + 1)}, "log: 16385 bytes"},
		{&PodLog{UID: "u", Text: "\xff"}, "not UTF-8"},
		{&Unreadable{}, "without UID"},
		{&Unreadable{UID: long(65)}, "UID: 65 bytes"},
		{&Unreadable{UID: "u", Cause: long(MaxImageText + 1)}, "1025 bytes"},
		{
			&Backends{Service: service4, Pods: []Backend{
				{State: PodStarting, NodeAddr: netip.MustParseAddr("fe80::1%eth0")},
			}},
			"address of its node fe80::1%eth0: an address with a zone",
		},
		{&Nodes{}, "piece 0 of 0"},
		{&Nodes{Pieces: 1, Nodes: make([]NodeInfo, maxNodes+1)}, "33 nodes, at most 32"},
		{&Nodes{Pieces: 1, Nodes: []NodeInfo{{Addr: service4.Addr()}}}, "without a name"},
		{&Nodes{Pieces: 1, Nodes: []NodeInfo{{Name: "a"}}}, "node a: no address"},
		{&Nodes{Pieces: 1, Nodes: []NodeInfo{{Name: long(254), Addr: service4.Addr()}}}, "254 bytes"},
		{&Node{}, "no address"},
		{&Node{Addr: netip.MustParseAddr("fe80::1%eth0")}, "zone"},
		{&PodReport{Event: 6, Service: "a/b", UID: "u"}, "unknown pod event 6"},
		{&PodReport{Event: 1, Service: "a/b"}, "without service or UID"},
		{&PodReport{Event: 1, Service: "a/b", UID: long(65)}, "UID: 65 bytes"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", Container: long(64)}, "container: 64 bytes"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", Name: long(254)}, "name: 254 bytes"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", SpecHash: long(65)}, "spec hash: 65 bytes"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", Netns: long(256)}, "netns: 256 bytes"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", At: -1}, "negative time"},
		{&PodReport{Event: 1, Service: "a/b", UID: "u", Addr: netip.MustParseAddr("0.0.0.0")}, "pod: no address"},
		{&Stats{Pods: make([]PodStats, MaxPodStats+1)}, "15 pods, at most 14"},
		{&Stats{Pods: make([]PodStats, 1)}, "no address"},
		{&Usage{Pods: make([]PodUsage, MaxPodUsage+1)}, "21 pods, at most 20"},
		{&Usage{Pods: make([]PodUsage, 1)}, "no address"},
		{&Usage{Pods: []PodUsage{{Service: service4, At: -1}}}, "negative time"},
		{&Answers{Pods: make([]PodAnswers, MaxPodAnswers+1)}, "13 pods, at most 12"},
		{&Answers{Pods: make([]PodAnswers, 1)}, "no address"},
		{&Answers{At: -1}, "negative time"},
		{&Loads{Pods: make([]PodLoad, MaxPodLoads+1)}, "37 pods, at most 36"},
		{&Loads{Pods: make([]PodLoad, 1)}, "no address"},
		{&Sync{Pieces: 1}, "version 0"},
		{&Sync{Version: 1}, "piece 0 of 0"},
		{&Sync{Version: 1, Pieces: 1, Removals: []netip.AddrPort{service4}}, "removal from the empty table"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{{Addr: service4, Name: long(maxName + 1)}}}, "318 bytes"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{{Addr: service4, Ports: NewPorts(make([]Port, 1))}}}, "no port"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Ports: NewPorts([]Port{{Number: 80, Name: "web"}})},
		}}, "port 80 is no port, or there twice"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Ports: NewPorts([]Port{{Number: 81, Name: "web"}, {Number: 82, Name: "web"}})},
		}}, `its name "web" is empty, or there twice`},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Ports: NewPorts([]Port{{Number: 81, Name: "web", Protocol: 1}})},
		}}, "unknown protocol 1"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Ports: NewPorts(make([]Port, MaxFurtherPorts+1))},
		}}, "16 further ports, at most 15"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting}}, Targets: [][]uint16{{1}, {2}}},
			"targets of 2 pods, of 1"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting, Open: 4}}, Targets: [][]uint16{{1}}},
			"listens for ports 100, and the service has 1 more"},
		{&Backends{Service: service4, Pods: []Backend{{State: PodStarting, Open: 1}}}, "has 0 more"},
		{&Sync{Base: 1, Version: 2, Pieces: 1, Removals: make([]netip.AddrPort, 1)}, "removed service: no address"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Sources: manyRules(1)},
		}}, "without their flag"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Flags: FlagSources, Sources: manyRules(MaxSourceRules + 1)},
		}}, "4097 rules for sources, at most 4096"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Flags: FlagSources, Sources: Sources{"\x98\x0a\x00\x00\x01"}},
		}}, "not a prefix"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Requests: Requests{MaxPerPod: 1}},
		}}, "without their flag"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Flags: FlagRequests, Requests: Requests{Protocol: 4}},
			{Addr: service4, Flags: FlagRequests, Requests: Requests{TrustedProxies: proxies(MaxTrustedProxies + 1)}},
		}}, "unknown protocol 4"},
		{&Sync{Version: 1, Pieces: 1, Upserts: []Service{
			{Addr: service4, Requests: Requests{Traffic: split(Sticky{}, 100)}},
		}}, "without their flag"},
		{splits(Sticky{}), "0 revisions, 1 to 8 are possible"},
		{splits(Sticky{}, 20, 10, 10, 10, 10, 10, 10, 10, 10), "9 revisions, 1 to 8 are possible"},
		{splits(Sticky{}, 90, 11), "the percentages add up to 101"},
		{splits(Sticky{Kind: 3, Name: "a"}, 100), "unknown kind of stickiness 3"},
		{splits(Sticky{Kind: StickyHeader}, 100), `stickiness of kind 1 by ""`},
		{splits(Sticky{Kind: StickyHeader, Name: "a", MaxAgeSeconds: 1}, 100), "without a cookie"},
		{splits(Sticky{Kind: StickyHeader, Name: strings.Repeat("a", 129)}, 100), "stickiness: 129 bytes, at most 128"},
		{&Denied{Service: service4}, "source: no address"},
		{&Caller{Service: service4, TraceID: [16]byte{1}}, "no trace"},
		{&Inspect{Most: 501}, "501 pairs wanted, at most 500"},
		{&GateState{Tables: make([]GateTable, 33)}, "33 tables"},
		{&GateState{Counters: make([]GateCounter, 256)}, "256 counters"},
		{&GateState{Interfaces: make([]GateInterface, 33)}, "33 interfaces"},
		{&GateState{Tables: []GateTable{{}}}, "table: no name"},
		{&GateState{Counters: []GateCounter{{Name: long(64)}}}, "counter: 64 bytes"},
		{&GateState{Interfaces: []GateInterface{{Name: "eth0"}}}, "mode of an interface: no name"},
		{&Connected{Pairs: make([]ConnectedPair, 501)}, "501 pairs"},
		{&Connected{Pairs: []ConnectedPair{{Service: service4}}}, "client: no address"},
		{&Connected{Pairs: []ConnectedPair{{Client: service4.Addr()}}}, "service: no address"},
		{&Moved{To: service4}, "former address: no address"},
		{&Moved{From: service4}, "new address: no address"},
		{&Moved{From: service4, To: service4}, "the addresses are both"},
		{&Alert{}, "unknown kind 0"},
		{&Alert{Kind: 12}, "unknown kind 12"},
		{&Alert{Kind: AlertNodeWakes, Source: net24}, "service: no address"},
		{&Alert{Kind: AlertNodeWakes, Service: service4}, "source: no address"},
		{&Alert{Kind: AlertNodeWakes, Service: service4, Source: net24, Size: 1}, "0 of 1 entries of wakes_node"},
		{&Alert{Kind: AlertNodeWakes, Service: service4, Source: netip.PrefixFrom(service4.Addr(), 24)}, "not a prefix"},
		{&Alert{Kind: AlertPods}, "0 of 0 entries of pods"},
		{&Alert{Kind: AlertPods, Size: 1, Service: service4}, "service of an alert about pods"},
		{&Alert{Kind: AlertServiceFlows, Size: 1, Service: service4, Source: net24}, "source of an alert"},
		{&Images{}, "piece 0 of 0"},
		{&Images{Piece: 64, Pieces: 65}, "piece 64 of 65, at most 64"},
		{&Images{Pieces: 1, Images: make([]WantedImage, 65)}, "65 images, at most 64"},
		{&Images{Pieces: 1, Images: []WantedImage{{Ref: "a"}}}, "unknown pull policy 0"},
		{&Images{Pieces: 1, Images: []WantedImage{{Policy: ImageNever}}}, "without a name"},
		{&Images{Pieces: 1, Images: []WantedImage{{Policy: ImageNever, Ref: long(1025)}}}, "image: 1025 bytes"},
		{&ImagePulled{Ref: "a", Done: 2, Total: 1}, "2 of 1 bytes of an image"},
		{&ImagePulled{}, "without a name"},
		{&Repositories{}, "piece 0 of 0"},
		{&Repositories{Piece: 64, Pieces: 65}, "piece 64 of 65, at most 64"},
		{&Repositories{Pieces: 1, Names: make([]string, 65)}, "65 repositories, at most 64"},
		{&Repositories{Pieces: 1, Names: []string{""}}, "without a name"},
		{&Mirror{}, "mirror: no address"},
		{&Blobs{}, "without a name"},
		{&Blobs{Repository: "a", Blobs: make([]Blob, 129)}, "129 blobs, at most 128"},
		{&Blobs{Repository: "a", Blobs: []Blob{{State: 4}}}, "unknown state of a blob 4"},
		{&Blobs{Repository: "a", Blobs: []Blob{{State: BlobGone, Have: []byte{1}}}}, "pieces of a blob in state 1"},
		{&Blobs{Repository: "a", Blobs: []Blob{{State: BlobPartial, Have: make([]byte, 129)}}}, "a set of 129 bytes"},
		{&Holders{}, "without a name"},
		{&Holders{Repository: "a", Lease: make([]byte, 129)}, "lease: a set of 129 bytes"},
		{&Holders{Repository: "a", Holders: make([]Holder, 17)}, "17 holders, at most 16"},
		{&Holders{Repository: "a", Holders: make([]Holder, 1)}, "mirror: no address"},
		{&Holders{Repository: "a", Holders: []Holder{{Mirror: Mirror{Addr: service4}, Have: make([]byte, 129)}}},
			"holder: a set of 129 bytes"},
		{&ImageReports{Images: make([]ImageReport, 17)}, "17 images, at most 16"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: 5}}}, "unknown state of an image 5"},
		{&ImageReports{Images: []ImageReport{{State: ImageFailed}}}, "without a name"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImageFailed, Reason: long(33)}}}, "reason: 33 bytes"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImageFailed, Digest: long(129)}}}, "digest: 129 bytes"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImageFailed, Message: long(1025)}}}, "message: 1025 bytes"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImageFailed, Since: -1}}}, "negative time"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImagePresent, Volumes: make([]string, 17)}}},
			"17 volumes, at most 16"},
		{&ImageReports{Images: []ImageReport{{Ref: "a", State: ImagePresent, Volumes: []string{long(1000), long(25)}}}},
			"volumes: 25 bytes, at most 24"},
	} {
		name := c.m.Type().String()
		_, err := encode(c.m)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: error %v, want one with %q", c.m, err, c.want)
		}
		// A value that does not fit its length field cannot be encoded, and the encoding of an address has no zone.
		// Rules and Requests are encoded only with their flag.
		lossy := strings.Contains(c.want, "IPv4") || strings.Contains(c.want, "zone") ||
			strings.Contains(c.want, "without their flag") || strings.Contains(c.want, "targets of 2 pods") ||
			strings.Contains(c.want, "has 0 more")
		if b := c.m.(body).append([]byte{byte(c.m.Type())}); len(b) < 1000 {
			if got, err := decode(b); err == nil && !reflect.DeepEqual(got, c.m) && !lossy {
				t.Errorf("%+v decodes to %+v", c.m, got)
			}
		}
	}
	for _, b := range [][]byte{nil, {0}, {1}, {11}, {12}, {255}} {
		if m, err := decode(b); err == nil {
			t.Errorf("%x decodes to %+v", b, m)
		}
	}
}

func TestShiftChangesEveryKnownTime(t *testing.T) {
	for name, m := range samples() {
		s, ok := m.(timed)
		var before []monotime.Time
		collectTimes(reflect.ValueOf(m), &before)
		if ok != (len(before) > 0) && name != "stats none" {
			t.Errorf("%s has %d times, shift: %v", name, len(before), ok)
		}
		if !ok {
			continue
		}
		convertTimes(s, 5, math.MaxInt64)
		var after []monotime.Time
		collectTimes(reflect.ValueOf(m), &after)
		for i := range before {
			if after[i] != before[i]+5 {
				t.Errorf("%s: time %d is %d after the shift, want %d", name, i, after[i], before[i]+5)
			}
		}
	}
	w := &Wake{Noticed: 3}
	convertTimes(w, -10, math.MaxInt64)
	if w.SYNSeen != 0 || w.Noticed != 1 {
		t.Errorf("got %+v: an unknown time must stay unknown, a known one known", w)
	}
}

// A daemon that reports a time to come would keep a service awake, or make its reports count more than all later ones.
func TestTimesAreNotToCome(t *testing.T) {
	for name, m := range samples() {
		s, ok := m.(timed)
		if !ok {
			continue
		}
		s.times(func(t *monotime.Time) { *t = math.MaxInt64 })
		const now = 1000
		convertTimes(s, -5, now)
		var after []monotime.Time
		collectTimes(reflect.ValueOf(m), &after)
		for i, at := range after {
			if at != now {
				t.Errorf("%s: time %d is %d, want %d", name, i, at, now)
			}
		}
	}
}

// collectTimes appends every field of type monotime.Time to out.
func collectTimes(v reflect.Value, out *[]monotime.Time) {
	switch {
	case v.Kind() == reflect.Pointer:
		collectTimes(v.Elem(), out)
	case v.Type() == reflect.TypeFor[monotime.Time]():
		*out = append(*out, monotime.Time(v.Int()))
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			collectTimes(v.Index(i), out)
		}
	case v.Type() == reflect.TypeFor[netip.AddrPort](), v.Type() == reflect.TypeFor[netip.Addr]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			collectTimes(v.Field(i), out)
		}
	}
}

// split returns traffic to revisions with these percentages.
func split(s Sticky, percent ...uint8) Traffic {
	var revisions []Revision
	for i, p := range percent {
		revisions = append(revisions, Revision{Service: fmt.Sprint("default/v", i), Percent: p})
	}
	return NewTraffic(s, revisions)
}

// splits returns a table with a service that has such traffic.
func splits(s Sticky, percent ...uint8) *Sync {
	return &Sync{Version: 1, Pieces: 1, Upserts: []Service{
		{Addr: service4, Flags: FlagRequests, Requests: Requests{Traffic: split(s, percent...)}},
	}}
}

// proxies returns some networks of trusted proxies.
func proxies(n int) Sources {
	rules := make([]sources.Rule, n)
	for i := range rules {
		rules[i] = sources.Rule{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16), Allow: true}
	}
	return NewSources(rules)
}
