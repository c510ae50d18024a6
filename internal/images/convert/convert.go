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
