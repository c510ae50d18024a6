// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/decide/sources"
)

const (
	// MaxSourceRules is the most rules for sources that a service can have: they fit one message.
	MaxSourceRules = 4096

	ruleSize  = 1 + 4 // bytes of a rule
	ruleAllow = 0x80  // bit of a rule's first byte; the others are the length of its prefix
)

// Sources are the rules for the sources of a service, in their encoding, so that services can be compared. The zero
// value has no rules, which refuses every source.
type Sources struct {
	// Rules of 5 bytes: the length of the prefix, plus 128 if it is allowed, and 4 bytes of IPv4 network address.
	encoded string
}

// NewSources returns rules for sources, which have distinct IPv4 prefixes. Order matters for comparisons only.
func NewSources(rules []sources.Rule) Sources {
	b := make([]byte, 0, ruleSize*len(rules))
	for _, r := range rules {
		first := byte(r.Prefix.Bits())
		if r.Allow {
			first |= ruleAllow
		}
		a := r.Prefix.Masked().Addr().As4()
		b = append(append(b, first), a[:]...)
	}
	return Sources{string(b)}
}

// Len returns the number of rules.
func (s Sources) Len() int { return len(s.encoded) / ruleSize }

// Rules returns the rules.
func (s Sources) Rules() []sources.Rule {
	if s.encoded == "" {
		return nil
	}
	rules := make([]sources.Rule, s.Len())
	for i := range rules {
		b := s.encoded[i*ruleSize : (i+1)*ruleSize]
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte(b[1:]))), int(b[0]&^ruleAllow))
		rules[i] = sources.Rule{Prefix: p, Allow: b[0]&ruleAllow != 0}
	}
	return rules
}

// MarshalText writes the rules for people: "+" allows a prefix, "-" denies it.
func (s Sources) MarshalText() (text []byte, err error) {
	for i, r := range s.Rules() {
		if i > 0 {
			text = append(text, ' ')
		}
		sign := byte('-')
		if r.Allow {
			sign = '+'
		}
		text = r.Prefix.AppendTo(append(text, sign))
	}
	return text, nil
}

func (s Sources) check() error {
	if s.Len() > MaxSourceRules {
		return fmt.Errorf("%d rules for sources, at most %d", s.Len(), MaxSourceRules)
	}
	for _, r := range s.Rules() {
		if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() {
			return fmt.Errorf("rule for sources %v: not a prefix", r.Prefix)
		}
	}
	return nil
}

// append appends the number of rules, then the rules.
func (s Sources) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(s.Len())), s.encoded...)
}

func (s *Sources) decode(d *decoder) {
	s.encoded = d.str(ruleSize * d.count(int(d.u16()), ruleSize)) // how many rules follow
}

const (
	// MaxFurtherPorts is the most ports that a service can have beyond its first one.
	MaxFurtherPorts = 15

	maxPortName = 15        // bytes, as of a service name in RFC 6335
	portFixed   = 1 + 2 + 1 // bytes of a port without its name
)

// IPProtocol is the transport protocol of a port.
type IPProtocol uint8

// The values of Port.Protocol.
const (
	IPProtocolTCP IPProtocol = 0 // the only one that services can have
)

// Port is a port of a service beyond its first one. It has the address of the service.
type Port struct {
	// Protocol is IPProtocolTCP.
	Protocol IPProtocol
	// Number is the port of the service address.
	Number uint16
	// Name is unique among the ports of the service, at most 15 bytes.
	Name string
	// Restricted drops SYNs of sources that Sources do not allow. Those of the service are about its first port only.
	Restricted bool
	// Sources are the rules for clients of the port, at most MaxSourceRules; empty unless it is Restricted.
	Sources Sources
}

// portSources is the bit of the protocol of a Port that is Restricted: Sources follow.
const portSources = 0x80

// Ports are the further ports of a service, in their encoding, so that services can be compared. A service with one
// port has the zero value.
type Ports struct{ encoded string }

// NewPorts returns further ports, at most MaxFurtherPorts.
func NewPorts(list []Port) Ports {
	if len(list) == 0 {
		return Ports{}
	}
	b := []byte{byte(len(list))}
	for _, p := range list {
		protocol := byte(p.Protocol)
		if p.Restricted {
			protocol |= portSources
		}
		b = appendText(binary.BigEndian.AppendUint16(append(b, protocol), p.Number), p.Name)
		if p.Restricted {
			b = p.Sources.append(b)
		}
	}
	return Ports{string(b)}
}

// Empty reports whether there are none.
func (p Ports) Empty() bool { return p.encoded == "" }

// List returns the ports.
func (p Ports) List() []Port {
	if p.Empty() {
		return nil
	}
	return readPorts(&decoder{b: []byte(p.encoded)})
}

// MarshalText writes the ports for people.
func (p Ports) MarshalText() (text []byte, err error) {
	for i, port := range p.List() {
		if i > 0 {
			text = append(text, ' ')
		}
		text = fmt.Appendf(text, "%s:%d", port.Name, port.Number)
	}
	return text, nil
}

func (p Ports) check(first uint16) error {
	list := p.List()
	if len(list) > MaxFurtherPorts {
		return fmt.Errorf("%d further ports, at most %d", len(list), MaxFurtherPorts)
	}
	numbers, names := map[uint16]bool{first: true}, map[string]bool{}
	for _, port := range list {
		switch {
		case port.Protocol != IPProtocolTCP:
			return fmt.Errorf("port %d: unknown protocol %d", port.Number, port.Protocol)
		case port.Number == 0 || numbers[port.Number]:
			return fmt.Errorf("port %d is no port, or there twice", port.Number)
		case port.Name == "" || names[port.Name]:
			return fmt.Errorf("port %d: its name %q is empty, or there twice", port.Number, port.Name)
		}
		if err := checkString("name of a port", port.Name, maxPortName); err != nil {
			return err
		}
		if err := port.Sources.check(); err != nil {
			return fmt.Errorf("port %d: %w", port.Number, err)
		}
		numbers[port.Number], names[port.Name] = true, true
	}
	return nil
}

func (p Ports) append(b []byte) []byte { return append(b, p.encoded...) }

func (p *Ports) decode(d *decoder) {
	ports := readPorts(d)
	if d.err == nil && len(ports) == 0 {
		d.fail("no further ports: the field is left out for that")
	}
	*p = NewPorts(ports)
}

// readPorts reads the number of ports, then the ports.
func readPorts(d *decoder) (ports []Port) {
	for range d.count(int(d.u8()), portFixed) {
		protocol := d.u8() // bit portSources: Sources follow
		p := Port{Protocol: IPProtocol(protocol &^ portSources), Number: d.u16(), Name: d.text()}
		if p.Restricted = protocol&portSources != 0; p.Restricted {
			p.Sources.decode(d)
		}
		ports = append(ports, p)
	}
	return ports
}

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
	Kind StickyKind // what keeps a client on its revision
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
