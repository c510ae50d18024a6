// SPDX-License-Identifier: Apache-2.0

package unzstd

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/zstd"
)

// frame is a frame of zstd with the content "hello" that asks for a window of 2^log bytes (RFC 8878, 3.1.1.1.2).
func frame(log int) []byte {
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte((log - 10) << 3), 5<<3 | 1, 0, 0}, "hello"...)
}

func TestLargeWindowsAreRefused(t *testing.T) {
	for _, c := range []struct {
		window uint64
		log    int
		fits   bool
	}{
		{StreamWindow, 27, true}, {StreamWindow, 28, false}, {StreamWindow, 31, false}, {StreamWindow, 41, false},
		{ChunkWindow, 25, true}, {ChunkWindow, 26, false}, {ChunkWindow, 31, false},
	} {
		r, err := NewReader(bytes.NewReader(frame(c.log)), c.window)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		switch {
		case c.fits && (err != nil || string(got) != "hello"):
			t.Errorf("window of 2^%d, at most %d bytes: %q, %v", c.log, c.window, got, err)
		case !c.fits && (!errors.Is(err, zstd.ErrWindowSizeExceeded) || !strings.Contains(err.Error(), "--long=")):
			t.Errorf("window of 2^%d, at most %d bytes: %q, %v; want an error that says what to do", c.log, c.window, got, err)
		}
	}
}

func TestStreamsOfContainerdAreDecompressedWithinTheLimit(t *testing.T) {
	open := func(b []byte) (string, compression.Compression, error) {
		r, err := Decompress(bytes.NewReader(b))
		if err != nil {
			return "", 0, err
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		return string(got), r.GetCompression(), err
	}
	skippable := append([]byte{0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3}, frame(20)...)
	for name, c := range map[string]struct {
		in   []byte
		want string
		kind compression.Compression
	}{
		"zstd": {frame(20), "hello", compression.Zstd}, "skippable frame": {skippable, "hello", compression.Zstd},
		"plain": {[]byte("hello, world"), "hello, world", compression.Uncompressed},
		"short": {[]byte("hi"), "hi", compression.Uncompressed},
	} {
		if got, kind, err := open(c.in); got != c.want || kind != c.kind || err != nil {
			t.Errorf("%s: %q, %v, %v", name, got, kind, err)
		}
	}
	if _, _, err := open(frame(29)); !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("window of 512 MiB: %v, want a refusal", err)
	}
}
