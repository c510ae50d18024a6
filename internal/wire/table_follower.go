// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"
)

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
