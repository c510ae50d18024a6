// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// MaxRevisions is the most revisions that a service's traffic can have.
	MaxRevisions = 8

	maxTag        = 63   // bytes of a tag
	maxSticky     = 128  // bytes of the name of a header or cookie
	splitsTraffic = 0x80 // bit of the protocol of Requests: Traffic follows
)

// StickyKind says how a client keeps its revision.
type StickyKind uint8

// The kinds.
const (
	StickyNone   StickyKind = 0 // by nothing: each request is on its own
	StickyHeader StickyKind = 1 // by a header that distinguishes users
	StickyCookie StickyKind = 2 // by a cookie, which clients without it get
)

// Sticky describes how a client keeps its revision.
type Sticky struct {
	Kind StickyKind
	// Name is that of the header or cookie; empty for StickyNone.
	Name string
	// MaxAgeSeconds is how long clients keep the cookie; 0 means until they exit.
	MaxAgeSeconds uint32
}

// Revision is a service that gets a part of the requests of another one.
type Revision struct {
	// Service is its Service.Name.
	Service string
	// Percent is its part, 0 to 100.
	Percent uint8
	// Tag is the tag by which requests ask for it; empty for none.
	Tag string
}

// Traffic routes the requests of a service to others, in its encoding, so that services can be compared. A service
// with pods of its own has the zero value.
type Traffic struct{ encoded string }

// NewTraffic returns traffic to at most MaxRevisions revisions, whose percentages add up to 100.
func NewTraffic(s Sticky, revisions []Revision) Traffic {
	b := appendText([]byte{byte(s.Kind)}, s.Name)
	b = binary.BigEndian.AppendUint32(b, s.MaxAgeSeconds)
	b = append(b, byte(len(revisions)))
	for _, r := range revisions {
		b = appendText(append(appendName(b, r.Service), r.Percent), r.Tag)
	}
	return Traffic{string(b)}
}

// Empty reports whether the service has pods of its own.
func (t Traffic) Empty() bool { return t.encoded == "" }

// Revisions returns the revisions, and how clients keep theirs.
func (t Traffic) Revisions() (Sticky, []Revision) {
	if t.Empty() {
		return Sticky{}, nil
	}
	return readTraffic(&decoder{b: []byte(t.encoded)})
}

// MarshalText writes the revisions for people: "default/v1 90%, default/v2 10% canary".
func (t Traffic) MarshalText() (text []byte, err error) {
	_, revisions := t.Revisions()
	for i, r := range revisions {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = fmt.Appendf(text, "%s %d%%", r.Service, r.Percent)
		if r.Tag != "" {
			text = fmt.Appendf(text, " %s", r.Tag)
		}
	}
	return text, nil
}

func (t Traffic) check() error {
	sticky, revisions := t.Revisions()
	switch {
	case t.Empty():
		return nil
	case sticky.Kind > StickyCookie:
		return fmt.Errorf("traffic: unknown kind of stickiness %d", sticky.Kind)
	case (sticky.Kind == StickyNone) != (sticky.Name == ""):
		return fmt.Errorf("traffic: stickiness of kind %d by %q", sticky.Kind, sticky.Name)
	case sticky.MaxAgeSeconds != 0 && sticky.Kind != StickyCookie:
		return fmt.Errorf("traffic: the age of a cookie without a cookie")
	case len(revisions) == 0 || len(revisions) > MaxRevisions:
		return fmt.Errorf("traffic: %d revisions, 1 to %d are possible", len(revisions), MaxRevisions)
	}
	if err := checkString("stickiness", sticky.Name, maxSticky); err != nil {
		return err
	}
	sum := 0
	for _, r := range revisions {
		if err := checkString("revision", r.Service, maxName); err != nil {
			return err
		}
		if err := checkString("tag", r.Tag, maxTag); err != nil {
			return err
		}
		sum += int(r.Percent)
	}
	if sum != 100 {
		return fmt.Errorf("traffic: the percentages add up to %d", sum)
	}
	return nil
}

func (t *Traffic) decode(d *decoder) {
	sticky, revisions := readTraffic(d)
	if d.err == nil {
		*t = NewTraffic(sticky, revisions)
	}
}

// readTraffic reads what NewTraffic wrote.
func readTraffic(d *decoder) (s Sticky, revisions []Revision) {
	s.Kind, s.Name = StickyKind(d.u8()), d.text()
	s.MaxAgeSeconds = d.u32()
	const least = 2 + 1 + 1 // bytes of a revision
	for range d.count(int(d.u8()), least) {
		revisions = append(revisions, Revision{Service: d.name(), Percent: d.u8(), Tag: d.text()})
	}
	return s, revisions
}
