// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"os"
	"testing"

	"github.com/opencontainers/go-digest"
)

// A range is given to others when all of its blocks are here, wherever they came from. Nothing is given once the layer
// was found wrong.
func TestARangeIsHereWhenAllOfItsBlocksAre(t *testing.T) {
	dir, d := t.TempDir(), digest.FromString("layer")
	const size = 3*BlockSize + 100
	file, notes := Paths(dir, d)
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(notes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Begin(f, size); err != nil {
		t.Fatal(err)
	}
	for block, mark := range map[int]byte{1: Here, 2: Lent, 3: Here} {
		if err := Mark(f, block, mark); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		offset, length int64
		here           bool
	}{
		{BlockSize, 1, true}, {BlockSize, 2 * BlockSize, true}, {BlockSize - 1, 2, false}, {0, 1, false},
		{size - 1, 1, true}, {size - 1, 2, false}, {size, 1, false}, {BlockSize, 0, false}, {-1, 1, false},
		{1<<63 - 1, 1 << 62, false},
	} {
		got, n, err := Open(dir, d, c.offset, c.length)
		if (err == nil) != c.here || err == nil && n.Size != size {
			t.Errorf("%+v: %+v, %v", c, n, err)
		}
		if err == nil {
			got.Close()
		}
	}
	if err := Complete(f); err != nil {
		t.Fatal(err)
	}
	if n, ok := Look(dir, d); !ok || !n.Whole {
		t.Errorf("%+v, %v", n, ok)
	}
	if err := Spoil(f); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir, d, BlockSize, 1); err == nil {
		t.Error("what was found wrong is given to others")
	}
}
