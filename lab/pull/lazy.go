// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/test/testutil/netlab"
)

// lazy measures pulls with programs that start as soon as they can, and the settings of the background.
func (b *bench) lazy(ctx context.Context) error {
	return b.withHub(ctx, 0, func(network *netlab.Net, h *hub) error {
		if err := b.optimise(ctx, network, h); err != nil {
			return fmt.Errorf("optimise the image: %w", err)
		}
		total := b.p.Rounds * len(lazyKinds) * len(lazyPrograms)
		if b.p.Sweep {
			total += b.p.Rounds * len(sweep)
		}
		for round := range b.p.Rounds {
			for _, i := range rand.New(rand.NewPCG(uint64(round), 1)).Perm(len(lazyKinds)) {
				if err := b.lazyRound(ctx, network, h, round+1, lazyKinds[i], total); err != nil {
					return err
				}
			}
			if !b.p.Sweep {
				continue
			}
			for _, i := range rand.New(rand.NewPCG(uint64(round), 2)).Perm(len(sweep)) {
				last := lazyPrograms[len(lazyPrograms)-1:]
				if err := b.lazyRuns(ctx, network, h, round+1, Lazy, last, sweep[i]); err != nil {
					return err
				}
				b.progress(total)
			}
		}
		return nil
	})
}

// lazyRound measures all programs with a kind of pull. After a full pull, all programs share a machine; after a lazy
// one, each has its own.
func (b *bench) lazyRound(ctx context.Context, network *netlab.Net, h *hub, round int, kind string, total int) error {
	groups := [][]lazyProgram{lazyPrograms}
	if kind != LazyStock {
		groups = nil
		for i := range lazyPrograms {
			groups = append(groups, lazyPrograms[i:i+1])
		}
	}
	for _, programs := range groups {
		if err := b.lazyRuns(ctx, network, h, round, kind, programs, lazySetting{}); err != nil {
			return err
		}
		for range programs {
			b.progress(total)
		}
	}
	return nil
}

// lazyRuns pulls an image on a new machine, and runs programs one after the other.
func (b *bench) lazyRuns(ctx context.Context, network *netlab.Net, h *hub, round int, kind string,
	programs []lazyProgram, s lazySetting) (err error) {
	n, err := b.newLazyNode(ctx, network, h, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := b.settle(); err != nil {
		return err
	}
	snapshotter := lazyPlugin
	if kind == LazyStock {
		snapshotter = full
	}
	begin := time.Now()
	img, err := n.pull(ctx, h.ref(lazyTags[kind]), snapshotter)
	if err != nil {
		return err
	}
	pulled := time.Since(begin).Seconds()
	for _, p := range programs {
		begin := time.Now()
		if err := n.run(ctx, img, snapshotter, p.argv); err != nil {
			return fmt.Errorf("%s, %s: %w", p.meaning, kind, err)
		}
		r := LazyRun{Round: round, Program: p.name, Kind: kind, Pull: pulled, Run: time.Since(begin).Seconds(),
			Workers: s.workers, Piece: s.piece}
		b.lazyRaw.Runs = append(b.lazyRaw.Runs, r)
		b.out.Log("%-9s %-6s pull %6.2f s, run %6.2f s %+v", kind, p.name, r.Pull, r.Run, s)
	}
	return nil
}

// optimise makes the optimised image: it runs programs on a machine, and rearranges the image by what was recorded.
func (b *bench) optimise(ctx context.Context, network *netlab.Net, h *hub) (err error) {
	n, err := b.newLazyNode(ctx, network, h, lazySetting{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	img, err := n.pull(ctx, h.ref(lazyTags[Lazy]), lazyPlugin)
	if err != nil {
		return err
	}
	for _, p := range learnt {
		if err := n.run(ctx, img, lazyPlugin, p.argv); err != nil {
			return err
		}
	}
	if err := n.stopSnapshotter(); err != nil { // it writes everything when it stops
		return err
	}
	o := convert.Options{
		Source: b.lazyTarball, Destination: filepath.Join(b.dir, "optimised.tar"), Tag: imageTag,
		Layers: convert.Layers{Mode: convert.Keep}, Compression: convert.Compression{Format: b.p.LazyFormat},
		First: func(d digest.Digest) []string {
			t, readErr := trace.Read(n.root(), d)
			if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
				err = readErr
			}
			b.lazyRaw.Files += len(t.Files)
			return t.Files
		},
	}
	res, convertErr := convert.Run(ctx, o)
	if err = errors.Join(err, convertErr); err != nil {
		return err
	}
	for _, l := range res.Images[0].After {
		b.lazyRaw.Packed += l.Packed
		b.lazyRaw.First += l.First
	}
	return h.push(ctx, o.Destination, lazyTags[Optimised])
}

// storeLazy puts the image in a tarball into the registry in the format of lazy pulls. The result is kept beside the
// tarball for the next run.
func (b *bench) storeLazy(ctx context.Context, h *hub, from string) error {
	b.lazyTarball = strings.TrimSuffix(from, ".tar") + "-" + b.p.LazyFormat + ".tar"
	if _, err := os.Stat(b.lazyTarball); err != nil {
		b.out.Log("converting the image to %s", b.p.LazyFormat)
		if _, err := convert.Run(ctx, convert.Options{
			Source: from, Destination: b.lazyTarball, Tag: imageTag, Layers: convert.Layers{Mode: convert.Keep},
			Compression: convert.Compression{Format: b.p.LazyFormat},
		}); err != nil {
			return err
		}
	}
	return h.push(ctx, b.lazyTarball, lazyTags[Lazy])
}
