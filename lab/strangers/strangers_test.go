// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/wired"
	"wangell.loutres.me/test/testutil/need"
)

// TestMain is also the processes of the tests below.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("LAB_TEST_STRANGERS") {
	case "":
		os.Exit(m.Run())
	case "yes":
		switch os.Args[1] {
		case "controller":
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			err = wired.RunController(context.Background(), os.Stdin, os.Stdout, log)
		case "daemons":
			err = RunDaemons(context.Background(), os.Stdin, os.Stdout)
		}
	}
	if err != nil {
		slog.Error(os.Args[1]+" process", "error", err)
		os.Exit(1)
	}
}

// TestSessionsOutliveStrangers runs the whole experiment at a low rate. It checks that strangers reach the controller,
// that no session ends and that all services are woken, not how long that takes.
func TestSessionsOutliveStrangers(t *testing.T) {
	need.Root(t)
	t.Setenv("LAB_TEST_STRANGERS", "yes")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	params := Params{
		Quick: true, controller: []string{os.Args[0], "controller"}, daemons: []string{os.Args[0], "daemons"},
	}
	reports, err := params.Run(ctx, lab.Output{Progress: func(int, int) {}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Summary {
		if math.IsNaN(v.Value) {
			t.Errorf("%s is %v", v.Key, v.Value)
		}
	}
	for key, want := range map[string]float64{
		"daemons": 10, "connected": 10, "sessions_ended": 0, "wakes": 20, "wakes_failed": 0,
	} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	flood := r.Raw.(Samples).Parts[1]
	if got := flood.Read + flood.Dropped; !flood.Flood || flood.Sent == 0 || got < flood.Sent*9/10 {
		t.Errorf("flood %t: %d datagrams of strangers were sent, and %d arrived", flood.Flood, flood.Sent, got)
	}
}

// The datagrams are HELLOs of connected and of other nodes, data of sessions and noise, in the promised shares.
func TestStrangersSendAMix(t *testing.T) {
	all, err := payloads(10)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 500 {
		t.Fatalf("%d payloads", len(all))
	}
	known, other := 0, 0
	for _, p := range all {
		switch {
		case len(p) == len(all[0]) && strings.Contains(string(p), "node-000"):
			known++
		case len(p) == len(all[0]) && strings.Contains(string(p), "stranger-00"):
			other++
		}
	}
	if known != 200 || other != 100 {
		t.Errorf("%d HELLOs of connected nodes and %d of others, want 200 and 100", known, other)
	}
}

func TestFramesAreIPv4Datagrams(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	server := netip.MustParseAddrPort("10.46.200.1:7946")
	all := frames([][]byte{[]byte("odd"), []byte("even")}, mac, mac, sources, server)
	if len(all) != framesInTurn {
		t.Fatalf("%d frames", len(all))
	}
	seen := map[netip.Addr]bool{}
	for i, f := range all {
		sum := uint32(0)
		for at := 14; at < 34; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[at:]))
		}
		if sum>>16+sum&0xffff != 0xffff {
			t.Fatalf("frame %d: the header's checksum is wrong", i)
		}
		source := netip.AddrFrom4([4]byte(f[26:30]))
		if !sources.Contains(source) || netip.AddrFrom4([4]byte(f[30:34])) != server.Addr() ||
			binary.BigEndian.Uint16(f[36:]) != server.Port() || int(binary.BigEndian.Uint16(f[38:])) != len(f)-34 {
			t.Fatalf("frame %d: % x", i, f)
		}
		seen[source] = true
	}
	if len(seen) < framesInTurn/2 {
		t.Errorf("%d sources", len(seen))
	}
}

func TestParametersThatCannotWork(t *testing.T) {
	for line, ok := range map[string]bool{
		"": true, "--quick": true, "--daemons 100 --rate 1000 --rounds 3 --time 2s": true,
		"--daemons 1": false, "--daemons 1001": false, "--rate 0": false, "--rate 1000001": false, "--rounds 11": false,
		"--time 3m": false, "--time=-1s": false, "--time 1ms": false, "--wakes 0": false, "--wakes 500 --rounds 2": false,
	} {
		p := &Params{}
		flags := pflag.NewFlagSet("strangers", pflag.ContinueOnError)
		p.Flags(flags)
		if err := flags.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(flags); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}
