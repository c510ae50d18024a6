// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/wire"
)

// LoadKey reads the wire key from a file of exactly wire.KeySize bytes.
func LoadKey(path string) (wire.Key, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return wire.Key{}, fmt.Errorf("wire key: %w", err)
	}
	if len(data) != wire.KeySize {
		return wire.Key{}, fmt.Errorf("wire key: %s has %d bytes, want %d: remove it and start again",
			path, len(data), wire.KeySize)
	}
	return wire.Key(data), nil
}

// loadOrMakeKey reads the key from a file, or makes a random one and writes it there (mode 0600). An instance that
// adopts the state of another one continues with its key.
func loadOrMakeKey(path string) (wire.Key, error) {
	key, err := LoadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if _, err := rand.Read(key[:]); err != nil {
		return wire.Key{}, fmt.Errorf("make the wire key: %w", err)
	}
	if err := atomicfile.Write(path, key[:]); err != nil {
		return wire.Key{}, fmt.Errorf("save the wire key: %w", err)
	}
	return key, nil
}
