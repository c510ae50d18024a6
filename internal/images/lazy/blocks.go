// SPDX-License-Identifier: Apache-2.0

package lazy

import "wangell.loutres.me/internal/images/lazy/packed"

// blockSize is the unit in which bytes of a blob are present or missing, in bytes. A read waits for whole blocks.
const blockSize = packed.BlockSize

// aheadBlocks is the least size of a request for a waiting read, in blocks: it also fetches what follows, up to the
// end of the piece.
const aheadBlocks = 1 << 20 / blockSize

// pieceBlocks is the size of the pieces that nodes exchange (package swarm), in blocks. A read asks for parts of one
// piece at a time: a node that has it need not have the next one.
const pieceBlocks = 4 << 20 / blockSize

// state is what is known of a block.
type state byte

const (
	missing state = iota
	coming        // a request for it runs
	here
)

// blocks are the states of the blocks of a blob.
type blocks []state

// run is a range of blocks: [from, to).
type run struct{ from, to int }

// blocksOf returns the blocks that hold n bytes from offset off.
func blocksOf(off, n int64) run {
	return run{int(off / blockSize), int((off + n + blockSize - 1) / blockSize)}
}

// count returns the number of blocks for a blob of size bytes.
func count(size int64) int { return packed.Count(size) }

// lacking returns the first missing block of r; false if there is none.
func (b blocks) lacking(r run) (int, bool) {
	for i := r.from; i < r.to; i++ {
		if b[i] != here {
			return i, true
		}
	}
	return 0, false
}

// next returns the first missing blocks from cursor on, and then from the beginning: at most limit, without a gap,
// and not beyond the next multiple of limit, so that complete pieces come together, for which other nodes can ask.
// The run is empty if none is missing.
func (b blocks) next(cursor, limit int) run {
	for n := range len(b) {
		if i := (cursor + n) % len(b); b[i] == missing {
			return b.missingFrom(i, limit-i%limit)
		}
	}
	return run{}
}

// missingFrom returns the missing blocks from i on: at most limit, without a gap.
func (b blocks) missingFrom(i, limit int) run {
	r := run{i, i}
	for r.to < len(b) && r.to-r.from < limit && b[r.to] == missing {
		r.to++
	}
	return r
}

// set sets the state of the missing blocks of r.
func (b blocks) set(r run, s state) {
	for i := r.from; i < r.to; i++ {
		if b[i] != here {
			b[i] = s
		}
	}
}

// plan lists the blocks to fetch first, in order.
type plan struct {
	order []int // without those before the first missing one
	in    map[int]bool
}

// add adds blocks after the others. Those beyond the end of a blob of size blocks are left out.
func (p *plan) add(size int, blocks []int) {
	if p.in == nil {
		p.in = map[int]bool{}
	}
	for _, i := range blocks {
		if i >= 0 && i < size && !p.in[i] {
			p.in[i] = true
			p.order = append(p.order, i)
		}
	}
}

// next returns missing blocks of the plan: at most limit, without a gap. The run is empty if none is missing.
func (p *plan) next(b blocks, limit int) run {
	for len(p.order) > 0 && b[p.order[0]] == here {
		p.order = p.order[1:]
	}
	for _, i := range p.order {
		if b[i] != missing {
			continue
		}
		r := run{i, i}
		for r.to < len(b) && r.to-r.from < limit && b[r.to] == missing && p.in[r.to] {
			r.to++
		}
		return r
	}
	return run{}
}
