// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Containerd is a throw-away containerd with its CRI plugin, which runs until Close.
type Containerd struct{ scratch *scratch }

// Start starts a throw-away containerd with the options Program, Dir, Insecure, Unpackers, Downloads, Path, Namespace
// and Config. It has settings for the insecure registries only, so that nobody changes the machine's settings by way
// of its own. It needs root.
func Start(ctx context.Context, o Options) (*Containerd, error) {
	o.Via = ViaCRI
	s, err := startScratch(ctx, o, o.Insecure)
	if err != nil {
		return nil, err
	}
	c := &Containerd{s}
	entries, err := os.ReadDir(c.Hosts())
	for _, e := range entries {
		if err == nil && e.Type()&os.ModeSymlink != 0 {
			err = os.Remove(filepath.Join(c.Hosts(), e.Name()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("settings of a throw-away containerd: %w, %w", err, c.Close())
	}
	return c, nil
}

// Socket is where it answers.
func (c *Containerd) Socket() string { return c.scratch.socket() }

// Hosts is the folder with its settings of registries.
func (c *Containerd) Hosts() string { return c.scratch.path("hosts") }

// Blob returns the file of a blob, given its digest as ALGORITHM:HEX.
func (c *Containerd) Blob(digest string) string { return c.scratch.blob(digest) }

// CPU returns the processor time that it, and its helpers that have ended, have used.
func (c *Containerd) CPU() (time.Duration, error) { return c.scratch.proc.CPU() }

// Stop stops it. Its folder stays until Close.
func (c *Containerd) Stop() error { return c.scratch.stop() }

// Close stops it and removes its folder, after everything that is mounted in it.
func (c *Containerd) Close() error { return c.scratch.close() }
