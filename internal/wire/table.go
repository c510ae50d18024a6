// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Limits of the history that the server keeps to send differences.
const (
	maxHistory      = 1024 // versions
	maxHistoryAddrs = 8192 // changed addresses of all these versions together
)

// tableState identifies the content of a table of services; the zero value means "no table".
type tableState struct{ version, hash uint64 }

// hashEntry returns the first 8 bytes of the SHA-256 of an entry's encoding. The hash of a table is the sum of the
// hashes of its entries, so it does not depend on their order and a change costs at most two hashes.
func hashEntry(s *Service) uint64 {
	sum := sha256.Sum256(s.append(nil))
	return binary.BigEndian.Uint64(sum[:8])
}

// change records which addresses a version changed.
type change struct {
	from  tableState
	addrs []netip.AddrPort
}

// entry is a service with its hash.
type entry struct {
	service Service
	hash    uint64
}

// table is the server's table of services. Version 0 means that the caller has not set one yet.
type table struct {
	tableState
	entries map[netip.AddrPort]entry
	bytes   int      // of all entries
	epoch   uint64   // versions start above it
	history []change // oldest first, without gaps
	changed int      // number of addresses in history

	// The step that was built last: mostly, all peers need the same.
	stepFrom   tableState
	stepTo     tableState
	stepPieces [][]byte
}

// set replaces the whole table. On error the table is unchanged.
func (t *table) set(services []Service) error {
	want := make(map[netip.AddrPort]bool, len(services))
	for i := range services {
		a := services[i].Addr
		if want[a] {
			return fmt.Errorf("wire: table of services: %s is listed twice", a)
		}
		want[a] = true
	}
	var removals []netip.AddrPort
	for a := range t.entries {
		if !want[a] {
			removals = append(removals, a)
		}
	}
	if err := t.update(services, removals); err != nil {
		return err
	}
	if t.version == 0 {
		t.version = t.epoch + 1
	}
	return nil
}

// update applies the removals, then the upserts. On error the table is unchanged.
func (t *table) update(upserts []Service, removals []netip.AddrPort) error {
	for i := range upserts {
		if err := upserts[i].check(); err != nil {
			return fmt.Errorf("wire: table of services: %w", err)
		}
	}
	next := make(map[netip.AddrPort]*entry, len(upserts)+len(removals))
	for _, a := range removals {
		next[a] = nil
	}
	for i := range upserts {
		next[upserts[i].Addr] = &entry{service: upserts[i], hash: hashEntry(&upserts[i])}
	}
	c := change{from: t.tableState}
	size, bytes, hash := len(t.entries), t.bytes, t.hash
	for a, e := range next {
		old, had := t.entries[a]
		switch {
		case e == nil && !had || e != nil && had && old == *e:
			continue
		case e == nil:
			size--
		case !had:
			size++
		}
		if hash -= old.hash; had {
			bytes -= old.service.size()
		}
		if e != nil {
			hash += e.hash
			bytes += e.service.size()
		}
		c.addrs = append(c.addrs, a)
	}
	if size > maxServices {
		return fmt.Errorf("wire: table of services: %d entries, at most %d", size, maxServices)
	}
	if bytes > maxTable {
		return fmt.Errorf("wire: table of services: %d bytes, at most %d: allow fewer sources, or wider prefixes",
			bytes, maxTable)
	}
	if len(c.addrs) == 0 {
		return nil
	}
	if t.entries == nil {
		t.entries = make(map[netip.AddrPort]entry, len(next))
	}
	for _, a := range c.addrs {
		if e := next[a]; e != nil {
			t.entries[a] = *e
		} else {
			delete(t.entries, a)
		}
	}
	if t.version == 0 {
		t.version = t.epoch
	}
	t.version++
	t.hash, t.bytes = hash, bytes
	t.remember(c)
	return nil
}

// remember appends to the history and drops the oldest changes beyond its limits.
func (t *table) remember(c change) {
	t.history = append(t.history, c)
	t.changed += len(c.addrs)
	for len(t.history) > maxHistory || len(t.history) > 0 && t.changed > maxHistoryAddrs {
		t.changed -= len(t.history[0].addrs)
		t.history[0] = change{}
		t.history = t.history[1:]
	}
}

// since returns the addresses that have changed since a state; ok is false if the history does not contain it.
func (t *table) since(from tableState) (addrs map[netip.AddrPort]bool, ok bool) {
	i := slices.IndexFunc(t.history, func(c change) bool { return c.from == from })
	if i < 0 || from.version == 0 {
		return nil, false
	}
	addrs = map[netip.AddrPort]bool{}
	for _, c := range t.history[i:] {
		for _, a := range c.addrs {
			addrs[a] = true
		}
	}
	return addrs, true
}

// step returns the encoded messages that update a client from a state to this table: the differences if they are
// known and at most about half of the table, otherwise the whole table. Callers share the slices and must not write
// to them.
func (t *table) step(from tableState) [][]byte {
	if t.stepPieces != nil && t.stepFrom == from && t.stepTo == t.tableState {
		return t.stepPieces
	}
	var upserts []Service
	var removals []netip.AddrPort
	base := from.version
	if addrs, ok := t.since(from); ok && len(addrs) <= len(t.entries)/2+1 {
		for _, a := range sortedAddrs(maps.Keys(addrs)) {
			if e, ok := t.entries[a]; ok {
				upserts = append(upserts, e.service)
			} else {
				removals = append(removals, a)
			}
		}
	} else {
		base = 0
		for _, a := range sortedAddrs(maps.Keys(t.entries)) {
			upserts = append(upserts, t.entries[a].service)
		}
	}
	t.stepFrom, t.stepTo = from, t.tableState
	t.stepPieces = makePieces(base, t.tableState, upserts, removals)
	return t.stepPieces
}

// sameAs returns the encoded step that only gives a client, whose table has the same entries, the version of this one.
func (t *table) sameAs(from tableState) [][]byte {
	return makePieces(from.version, t.tableState, nil, nil)
}

// sortedAddrs returns addresses in a fixed order, so that equal steps have equal encodings.
func sortedAddrs(addrs func(func(netip.AddrPort) bool)) []netip.AddrPort {
	return slices.SortedFunc(addrs, netip.AddrPort.Compare)
}

// makePieces splits a step into messages that fit one segment each, apart from an entry that is longer by itself.
func makePieces(base uint64, to tableState, upserts []Service, removals []netip.AddrPort) [][]byte {
	var cut []*Sync
	room := 0
	piece := func(size int) *Sync {
		if room < size || len(cut) == 0 {
			cut = append(cut, &Sync{Base: base, Version: to.version, Hash: to.hash, Piece: uint16(len(cut))})
			room = maxSegment - syncHeader
		}
		room -= size
		return cut[len(cut)-1]
	}
	for i := range upserts {
		p := piece(upserts[i].size())
		p.Upserts = append(p.Upserts, upserts[i])
	}
	for _, a := range removals {
		p := piece(addrSize)
		p.Removals = append(p.Removals, a)
	}
	piece(0)
	out := make([][]byte, len(cut))
	for i, p := range cut {
		p.Pieces = uint16(len(cut))
		out[i] = p.append([]byte{byte(TypeSync)})
	}
	return out
}

// follower is the client's copy of the table. It keeps only the hash of each entry, and collects the pieces of a step.
type follower struct {
	tableState
	entries map[netip.AddrPort]uint64
	step    *Sync // pieces 0 to step.Piece combined
}

// add adds a piece. It returns the step that the piece completes, or nil. After a failed step the state is zero, which
// asks the server for the whole table.
func (f *follower) add(m *Sync) (*Sync, error) {
	if m.Piece == 0 {
		f.step = m
	} else {
		if err := f.extend(m); err != nil {
			f.step = nil
			return nil, err
		}
	}
	if m.Piece+1 < m.Pieces {
		return nil, nil
	}
	step := f.step
	f.step = nil
	if err := f.apply(step); err != nil {
		f.tableState, f.entries = tableState{}, nil
		return nil, err
	}
	return step, nil
}

// extend adds a piece other than the first to the step that is being collected.
func (f *follower) extend(m *Sync) error {
	s := f.step
	if s == nil {
		return fmt.Errorf("wire: SYNC: piece %d of version %d arrived without the pieces before it", m.Piece, m.Version)
	}
	if m.Base != s.Base || m.Version != s.Version || m.Hash != s.Hash || m.Pieces != s.Pieces || m.Piece != s.Piece+1 {
		return fmt.Errorf("wire: SYNC: piece %d of version %d does not follow piece %d of version %d",
			m.Piece, m.Version, s.Piece, s.Version)
	}
	if len(s.Upserts)+len(m.Upserts) > maxServices || len(s.Removals)+len(m.Removals) > maxServices {
		return fmt.Errorf("wire: SYNC: version %d has more than %d entries", m.Version, maxServices)
	}
	s.Piece = m.Piece
	s.Upserts = append(s.Upserts, m.Upserts...)
	s.Removals = append(s.Removals, m.Removals...)
	return nil
}

// apply applies a complete step: the removals, then the upserts.
func (f *follower) apply(s *Sync) error {
	hash := f.hash
	if s.Base == 0 {
		f.entries, hash = make(map[netip.AddrPort]uint64, len(s.Upserts)), 0
	} else if s.Base != f.version {
		return fmt.Errorf("wire: SYNC: the step starts from version %d, the local table has version %d",
			s.Base, f.version)
	}
	for _, a := range s.Removals {
		hash -= f.entries[a]
		delete(f.entries, a)
	}
	for i := range s.Upserts {
		u := &s.Upserts[i]
		h := hashEntry(u)
		hash += h - f.entries[u.Addr]
		f.entries[u.Addr] = h
	}
	if hash != s.Hash {
		return fmt.Errorf("wire: SYNC: version %d has hash %016x, the local table has %016x after the step",
			s.Version, s.Hash, hash)
	}
	f.tableState = tableState{version: s.Version, hash: hash}
	return nil
}
