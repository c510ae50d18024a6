// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"slices"
	"time"
)

// TagHeader is the header of requests that ask for the revision with a tag.
const TagHeader = "Wangell-Tag"

// Traffic lists the revisions: the services that get the requests of a service without pods of its own.
type Traffic struct {
	// Revisions are those services. Their percentages add up to more than 0, and at most 100.
	Revisions []Revision
	Sticky    Sticky
}

// Revision is a service that gets a part of the requests of another one.
type Revision struct {
	// Service is its Service.Name.
	Service string
	// Percent is its part of the requests that ask for no tag: 0 to 100, of the sum of the percentages.
	Percent uint32
	// Tag makes requests with this TagHeader go to it; empty for none.
	Tag string
}

// Sticky describes how a client keeps its revision while the percentages do not change. Header and Cookie are not
// both set. Without both, each request is on its own.
type Sticky struct {
	// Header is the name of a header that distinguishes users. Requests without it are on their own.
	Header string
	// Cookie is the name of a cookie, of letters, digits, - and _. A client without it gets one, whose value is its place
	// among the percentages, 0 to 99.
	Cookie string
	// MaxAge is how long clients keep the cookie; 0 means until they exit.
	MaxAge time.Duration
}

// Empty reports whether a service has pods of its own.
func (t Traffic) Empty() bool { return len(t.Revisions) == 0 }

// leadsTo reports whether requests may go to a service.
func (t Traffic) leadsTo(service string) bool {
	return slices.ContainsFunc(t.Revisions, func(r Revision) bool {
		return r.Service == service && (r.Percent > 0 || r.Tag != "")
	})
}

func (t Traffic) equal(o Traffic) bool {
	return t.Sticky == o.Sticky && slices.Equal(t.Revisions, o.Revisions)
}
