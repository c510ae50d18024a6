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

// What of the past the server keeps, to send differences.
const (
	maxHistory      = 1024 // versions
	maxHistoryAddrs = 8192 // changed addresses, of all versions
)

// tableState names a content of the table of services; the zero value is "no table".
type tableState struct{ version, hash uint64 }

// hashEntry is the first 8 bytes of the SHA-256 of an entry's encoding. A table's hash is the sum of
// its entries', so their order does not matter and a change costs two hashes.
func hashEntry(s *Service) uint64 {
	sum := sha256.Sum256(s.append(nil))
	return binary.BigEndian.Uint64(sum[:8])
}

// change is what one version changed.
type change struct {
	from  tableState
	addrs []netip.AddrPort
}

// entry is a service with its hash.
type entry struct {
	service Service
	hash    uint64
}

// table is the server's table of services. Version 0 means that none was ever given.
type table struct {
	tableState
	entries map[netip.AddrPort]entry
	epoch   uint64   // the version before the first
	history []change // oldest first; each from the version before the next
	changed int      // addresses in history

	// The last step that was made, for the next peer that needs the same.
	stepFrom   tableState
	stepTo     tableState
	stepPieces [][]byte
}

// set makes services the whole table. On an error nothing is changed.
func (t *table) set(services []Service) error {
	want := make(map[netip.AddrPort]bool, len(services))
	for i := range services {
		a := services[i].Addr
		if want[a] {
			return fmt.Errorf("wire: table of services: %s is there twice", a)
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

// update changes entries: first the removals, then the upserts. On an error nothing is changed.
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
	size, hash := len(t.entries), t.hash
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
		hash -= old.hash
		if e != nil {
			hash += e.hash
		}
		c.addrs = append(c.addrs, a)
	}
	if size > maxServices {
		return fmt.Errorf("wire: table of services: %d entries, at most %d", size, maxServices)
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
	t.hash = hash
	t.remember(c)
	return nil
}

// remember adds to the history and forgets what is too old.
func (t *table) remember(c change) {
	t.history = append(t.history, c)
	t.changed += len(c.addrs)
	for len(t.history) > maxHistory || len(t.history) > 0 && t.changed > maxHistoryAddrs {
		t.changed -= len(t.history[0].addrs)
		t.history[0] = change{}
		t.history = t.history[1:]
	}
}

// since returns the addresses that changed after a state; ok is false if that is not known.
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

// step returns the encoded pieces that bring a client from a state to this table: the differences if they
// are known and fewer than half of the table, otherwise the whole. They are shared, and never written to.
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

func sortedAddrs(addrs func(func(netip.AddrPort) bool)) []netip.AddrPort {
	return slices.SortedFunc(addrs, netip.AddrPort.Compare)
}

// makePieces cuts a step into messages that fit one segment each.
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
		p := piece(serviceFixed + len(upserts[i].Name))
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

// follower is the client's side: it knows the hash of each entry, and collects the pieces of a step.
type follower struct {
	tableState
	entries map[netip.AddrPort]uint64
	step    *Sync // pieces 0 to step.Piece put together
}

// add takes a piece. It returns the step that it completes, or nil. After an error the table is unknown,
// which its state tells the server.
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

func (f *follower) extend(m *Sync) error {
	s := f.step
	if s == nil {
		return fmt.Errorf("wire: SYNC: piece %d of version %d without those before it", m.Piece, m.Version)
	}
	if m.Base != s.Base || m.Version != s.Version || m.Hash != s.Hash || m.Pieces != s.Pieces || m.Piece != s.Piece+1 {
		return fmt.Errorf("wire: SYNC: piece %d of version %d does not follow piece %d of version %d", m.Piece, m.Version, s.Piece, s.Version)
	}
	if len(s.Upserts)+len(m.Upserts) > maxServices || len(s.Removals)+len(m.Removals) > maxServices {
		return fmt.Errorf("wire: SYNC: version %d has more than %d entries", m.Version, maxServices)
	}
	s.Piece = m.Piece
	s.Upserts = append(s.Upserts, m.Upserts...)
	s.Removals = append(s.Removals, m.Removals...)
	return nil
}

// apply makes a complete step; removals come first.
func (f *follower) apply(s *Sync) error {
	hash := f.hash
	if s.Base == 0 {
		f.entries, hash = make(map[netip.AddrPort]uint64, len(s.Upserts)), 0
	} else if s.Base != f.version {
		return fmt.Errorf("wire: SYNC: a step from version %d, but here is version %d", s.Base, f.version)
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
		return fmt.Errorf("wire: SYNC: version %d has hash %016x, but here it is %016x", s.Version, s.Hash, hash)
	}
	f.tableState = tableState{version: s.Version, hash: hash}
	return nil
}
