// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"
)

var begin = time.Unix(1e9, 0)

func TestABucketHasItsBurstAndThenOneInEachPause(t *testing.T) {
	var b Bucket
	r := Rate{Burst: 3, Pause: time.Second}
	for _, c := range []struct {
		at   time.Duration
		want bool
	}{
		{0, true}, {0, true}, {0, true}, {0, false}, {999 * time.Millisecond, false}, {time.Second, true},
		{time.Second, false}, {2500 * time.Millisecond, true}, {2900 * time.Millisecond, false}, {3 * time.Second, true},
		// Time does not save up more than the burst.
		{time.Hour, true}, {time.Hour, true}, {time.Hour, true}, {time.Hour, false},
		// A clock that goes back gives nothing, and takes nothing that was not spent.
		{time.Hour - time.Second, false}, {time.Hour + time.Second, true}, {time.Hour + time.Second, false},
	} {
		if got := b.Take(r, begin.Add(c.at)); got != c.want {
			t.Errorf("after %v: %v, want %v", c.at, got, c.want)
		}
	}
	for range 1000 {
		if !b.Take(Rate{}, begin) {
			t.Fatal("the zero rate is a limit")
		}
	}
}

// In any stretch of time, at most Burst + length/Pause happen.
func TestNoScheduleBeatsABucket(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := Rate{Burst: 1 + rnd.IntN(5), Pause: time.Duration(1 + rnd.IntN(100))}
		var b Bucket
		var taken []time.Duration
		at := time.Duration(0)
		for range 300 {
			at += time.Duration(rnd.IntN(40))
			if b.Take(r, begin.Add(at)) {
				taken = append(taken, at)
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				if most := r.Burst + int((taken[j]-taken[i])/r.Pause); j-i+1 > most {
					t.Fatalf("%+v: %d in %v", r, j-i+1, taken[j]-taken[i])
				}
			}
		}
	}
}

func TestASourceSpendsNothingOfOthers(t *testing.T) {
	each, all := Rate{Burst: 4, Pause: time.Second}, Rate{Burst: 10, Pause: time.Second / 5}
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	s := NewSources(64, each, all)
	for s.Share(a, b) {
		s = NewSources(64, each, all)
	}
	count := func(from netip.Addr, now time.Time) (n int) {
		for range 100 {
			if s.Take(from, now) {
				n++
			}
		}
		return n
	}
	if n, m := count(a, begin), count(b, begin); n != each.Burst || m != each.Burst {
		t.Errorf("%d and %d at once, want %d each", n, m, each.Burst)
	}
	if n := count(a, begin.Add(2*time.Second)); n != 2 {
		t.Errorf("%d after two pauses, want 2", n)
	}
	// Forged addresses: what all may do holds, and takes no memory.
	s = NewSources(64, each, all)
	sum, at := 0, netip.MustParseAddr("10.0.0.0")
	for range 10_000 {
		at = at.Next()
		if s.Take(at, begin) {
			sum++
		}
	}
	if sum != all.Burst || len(s.buckets) != 64 || unsafe.Sizeof(Bucket{}) != 8 {
		t.Errorf("%d of all, want %d", sum, all.Burst)
	}
	if n := testing.AllocsPerRun(100, func() { s.Take(at, begin) }); n != 0 {
		t.Errorf("Take allocates %v times", n)
	}
}

func TestSlotsAreLimitedForEachPartyAndForAll(t *testing.T) {
	s := NewSlots[string](2, 5)
	take := func(k string) (n int) {
		for s.Take(k) {
			n++
		}
		return n
	}
	if n := take("a"); n != 2 {
		t.Errorf("a party holds %d, want 2", n)
	}
	if !s.Take("b") {
		t.Error("the limit of a party holds for others")
	}
	s.Give("a")
	s.Give("nobody")
	if n := take("a"); n != 1 {
		t.Errorf("one was given back, and %d could be taken", n)
	}
	for i := range 3 {
		if got, want := s.Take(fmt.Sprint(i)), i < 2; got != want {
			t.Errorf("party %d: %v, want %v", i, got, want)
		}
	}
	for _, k := range []string{"a", "a", "b", "0", "1", "1"} {
		s.Give(k)
	}
	if len(s.held) != 0 || s.sum != 0 {
		t.Errorf("%d parties are remembered, which hold %d", len(s.held), s.sum)
	}
}

func TestConnectionsBeyondTheLimitAreClosedAtOnce(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listener{inner, NewSlots[netip.Addr](1, 10)}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	first := <-accepted
	second := dial()
	if n, err := second.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes of a connection beyond the limit", n)
	}
	if err := first.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	first.Close()
	first.Close() // counts once
	dial()
	third := <-accepted
	if l.Slots.Take(Address(third.RemoteAddr().String())) {
		t.Error("a connection that was closed twice counts twice")
	}
	third.Close()
}

func TestAddressOfHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[fe80::1%eth0]:80": "fe80::1",
		"": "invalid IP", "pipe": "invalid IP",
	} {
		if got := Address(in).String(); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func BenchmarkSources(b *testing.B) {
	s := NewSources(1024, Rate{Burst: 10, Pause: time.Second}, Rate{Burst: 100, Pause: time.Second})
	a := netip.MustParseAddr("192.0.2.1")
	b.ReportAllocs()
	for b.Loop() {
		s.Take(a, begin)
	}
}
