// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
)

// Options says what to convert, and how.
type Options struct {
	// Source and Destination are references, or paths of tarballs.
	Source, Destination string
	Layers              Layers
	Compression         Compression
	// First returns the files of a source layer that should come first in the layer that replaces it, in order, as
	// paths from the root. Only for Keep, and compressions with a table of contents. It may be nil.
	First func(layer digest.Digest) []string
	// Platforms are those to convert, as OS/ARCHITECTURE[/VARIANT]; empty: all.
	Platforms []string
	// Tag is the name of the image in a tarball. Empty: the source's.
	Tag string
	// Verify compares the file systems of the source and the result before the result gets its name.
	Verify bool
	// Resume is a folder in which finished layers are kept when Run fails, for the next Run. Empty: a temporary folder.
	Resume string
	// Insecure are registries accessed over plain HTTP, as HOST or HOST:PORT. Those on this machine always are.
	Insecure []string
	// Progress is called with the stage and the number of its bytes that are done. It may be nil.
	Progress func(stage string, done, total int64)
}

// Result is what became of an image.
type Result struct {
	Source      string        `json:"source"`
	Destination string        `json:"destination"`
	Digest      digest.Digest `json:"digest"`
	MediaType   string        `json:"mediaType"`
	// Images are those of the platforms.
	Images []Image `json:"images"`
	// Dropped are manifests of the source that were left out, with reasons.
	Dropped []Dropped `json:"dropped,omitempty"`
	// Verified is set if the file systems were compared, and are equal.
	Verified bool `json:"verified,omitempty"`
}

// Image is the image of a platform.
type Image struct {
	Platform string        `json:"platform"`
	Source   digest.Digest `json:"sourceDigest"`
	Digest   digest.Digest `json:"digest"`
	Before   []Layer       `json:"before"`
	After    []Layer       `json:"after"`
}

// Layer is a layer before or after.
type Layer struct {
	Digest digest.Digest `json:"digest"`
	Packed int64         `json:"packed"` // bytes
	// Unpacked is the size of the archive; 0: it was copied without being read.
	Unpacked int64 `json:"unpacked,omitempty"`
	// First is the number of packed bytes at the beginning that hold the files that come first.
	First int64 `json:"first,omitempty"`
}

// ErrNoneFirst is returned by Run if Options.First has no files for any layer.
var ErrNoneFirst = errors.New("no layer of the image has files that are to come first")

// Dropped is a manifest that was not converted.
type Dropped struct {
	Digest digest.Digest `json:"digest"`
	Reason string        `json:"reason"`
}

// Run converts an image. If it fails, the destination does not have the image's name.
func Run(ctx context.Context, o Options) (res Result, err error) {
	var wanted []platforms.MatchComparer
	for _, p := range o.Platforms {
		parsed, err := platforms.Parse(p)
		if err != nil {
			return res, fmt.Errorf("platform %q: %w", p, err)
		}
		wanted = append(wanted, platforms.OnlyStrict(parsed))
	}
	from, err := openSource(o.Source, o.Insecure)
	if err != nil {
		return res, err
	}
	defer from.close()
	w, err := openWork(o.Resume)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	to, err := openSink(o, from, w)
	if err != nil {
		return res, err
	}
	if o.First != nil { // the destination may not have been named by the user
		if err := to.writable(ctx); err != nil {
			return res, fmt.Errorf("convert %s: %w", o.Source, err)
		}
	}
	j := &job{
		converter: converter{
			o: o, from: from, to: to, work: w, slots: make(chan struct{}, runtime.GOMAXPROCS(0)),
			count: &progress{report: o.Progress}, results: map[string]func() ([]packed, error){},
			delivered: map[digest.Digest]*sync.Once{}, failed: map[digest.Digest]error{}, unpacked: map[digest.Digest]int64{},
		},
		wanted: wanted, res: Result{Source: o.Source, Destination: o.Destination},
	}
	err = j.run(ctx)
	switch {
	case err == nil:
		return j.res, nil
	case ctx.Err() != nil: // its consequences say less
		err = ctx.Err()
	}
	return res, fmt.Errorf("convert %s: %w", o.Source, err)
}

func openSink(o Options, from *source, w *work) (sink, error) {
	if !isTarball(o.Destination) {
		if o.Tag != "" {
			return nil, errors.New("--tag names the image in a tarball, and the destination is a registry")
		}
		return openRegistry(o.Destination, o.Insecure, w)
	}
	tag := o.Tag
	if tag == "" {
		if from.server != nil {
			tag = from.server.Name()
		} else if t := from.ref.Identifier(); !strings.Contains(t, ":") {
			tag = from.ref.Name()
		}
	}
	return openTarball(o.Destination, tag, w)
}
