// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"sort"
	"time"
)

// Times are the times at which something happens, such as those of a cron expression.
type Times interface {
	// Next returns the first time after t; zero if there is none within some years. It is in the time zone of t.
	Next(t time.Time) time.Time
}

// Period is a part of the day, the week or the year in which a service has a pod, whether it is used or not: from each
// time of From until the next one of To.
type Period struct {
	From, To Times
	Zone     *time.Location
}

// lookback bounds the search for the last occurrence: some eight years, so that 29 February is found even around
// 2100.
const lookback = 8 * 366 * 24 * time.Hour

// Wanted reports whether a time is in one of the periods, and when that changes next at the earliest; zero if it does
// not.
func Wanted(periods []Period, now time.Time) (wanted bool, change time.Time) {
	for _, p := range periods {
		local := now.In(p.Zone)
		in := p.contains(local)
		next := p.From.Next(local)
		if in {
			next = p.To.Next(local)
		}
		wanted = wanted || in
		if !next.IsZero() && (change.IsZero() || next.Before(change)) {
			change = next
		}
	}
	return wanted, change
}

// contains reports whether the period has begun and not ended. One that begins and ends at the same moment has ended.
func (p Period) contains(now time.Time) bool {
	from, began := last(p.From, now)
	to, ended := last(p.To, now)
	return began && (!ended || from.After(to))
}

// last returns the latest occurrence that is not after now, to the second; false if there is none within lookback.
func last(t Times, now time.Time) (time.Time, bool) {
	happens := func(back int) (time.Time, bool) {
		at := t.Next(now.Add(-time.Duration(back) * time.Second))
		return at, !at.IsZero() && !at.After(now)
	}
	// The shortest way back from which the next occurrence is not after now.
	back := sort.Search(int(lookback/time.Second), func(n int) bool { _, ok := happens(n + 1); return ok })
	return happens(back + 1)
}
