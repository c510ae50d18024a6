// SPDX-License-Identifier: Apache-2.0

// Package quota limits what one party may use up of what all share: how often it does something (Bucket, Sources), and
// how much it holds at a time (Slots, Listener). Its memory is bounded, whatever strangers send.
//
// golang.org/x/time/rate limits a single party. It has no table of parties, and its Limiter takes five times the memory
// of a Bucket.
package quota

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Rate says how often something may happen: Burst times at once, and after that once in each Pause. The zero Rate is no
// limit.
type Rate struct {
	Burst int
	Pause time.Duration
}

// Bucket is what one party has spent of a Rate, which is always the same one. The zero value is untouched. It is not
// for several goroutines at once.
type Bucket struct{ spent int64 } // until when it is spent, in Unix nanoseconds

// Take reports whether it may happen once more, and spends that.
func (b *Bucket) Take(r Rate, now time.Time) bool {
	if !b.has(r, now) {
		return false
	}
	b.spent = max(b.spent, now.UnixNano()) + int64(r.Pause)
	return true
}

// has reports whether Take would succeed.
func (b *Bucket) has(r Rate, now time.Time) bool {
	return r == Rate{} || b.spent-now.UnixNano() <= int64(r.Burst-1)*int64(r.Pause)
}

// Sources limits how often each address does something, and all of them together. Addresses share a fixed number of
// buckets by a keyed hash, so that nobody can foretell who shares one, and forged addresses take no memory. An address
// of IPv6 counts for itself rather than its /64, in which all nodes of a cluster may be. Its methods may be called from
// several goroutines at once.
type Sources struct {
	each, all Rate
	seed      maphash.Seed

	mu      sync.Mutex
	buckets []Bucket
	total   Bucket
}

// NewSources returns limits for each source and for all of them together, with a number of buckets of 8 bytes.
func NewSources(buckets int, each, all Rate) *Sources {
	return &Sources{each: each, all: all, seed: maphash.MakeSeed(), buckets: make([]Bucket, buckets)}
}

// Take reports whether an address may do it once more, and spends that. A source beyond its own limit spends nothing of
// what all share.
func (s *Sources) Take(a netip.Addr, now time.Time) bool {
	i := s.bucket(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total.has(s.all, now) && s.buckets[i].Take(s.each, now) && s.total.Take(s.all, now)
}

// Share reports whether two addresses have the same bucket.
func (s *Sources) Share(a, b netip.Addr) bool { return s.bucket(a) == s.bucket(b) }

// bucket returns the place of an address in buckets.
func (s *Sources) bucket(a netip.Addr) int {
	b := a.As16()
	return int(maphash.Bytes(s.seed, b[:]) % uint64(len(s.buckets)))
}
