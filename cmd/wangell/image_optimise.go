// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
)

func newImageOptimise(g *globals) *cobra.Command {
	p := &places{g: g}
	o := convert.Options{Layers: convert.Layers{Mode: convert.Keep}, Verify: true}
	var out output
	var root, compression string
	cmd := &cobra.Command{
		Use:   "optimise SERVICE|IMAGE [DST]",
		Short: "Rewrite an image so that what its service reads first comes first",
		Long: `Convert an image for lazy pulling, with the files first that containers on this machine opened
first. Wangell-snapshotter records them while a service with imagePull.mode Lazy runs: wake
it once, and use it as its clients do. Its file system stays as it is: the result is compared
with the source before it gets its name.

DST is the reference of the result; by default, the one of the image with -optimised after
its tag. Change the service's image to it. A layer that nobody has read is converted, but not
rearranged.`,
		Example: `  wangell image optimise model
  wangell image optimise model registry.example/team/model:v3-fast
  wangell image optimise registry.example/team/model:v3 --snapshotter-root /var/lib/wangell/lazy`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return errors.New("name a service or an image, and optionally the result")
			}
			return nil
		},
		ValidArgsFunction: g.place().CompleteService,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Compression, err = convert.ParseCompression(compression); err != nil {
				return usage(cmd, "--compression %v", err)
			}
			images, err := imagesOfArgument(cmd.Context(), g, args[0])
			if err != nil {
				return err
			}
			o.Source, o.Destination = images[0], ""
			if len(args) == 2 {
				o.Destination = args[1]
			} else if o.Destination, err = imageref.Optimised(o.Source); err != nil {
				return err
			}
			if root == "" {
				root = snapshotterRoot(p.stateDir)
			}
			read := reads{root: root}
			o.First = read.files
			var stop func()
			o.Progress, stop = showProgress()
			res, err := convert.Run(cmd.Context(), o)
			stop()
			if err = errors.Join(err, read.err); errors.Is(err, convert.ErrNoneFirst) {
				return fmt.Errorf("image %s: it has no recording in %s: wake a service with imagePull.mode Lazy and this "+
					"image first", o.Source, root)
			} else if err != nil {
				return err
			}
			result := optimised{Result: res, Gain: gainOf(res, root)}
			if out == cli.OutputJSON {
				return cli.PrintJSON(result)
			}
			if err := printConverted(res); err != nil {
				return err
			}
			_, err = fmt.Println(result.Gain)
			return err
		},
	}
	p.register(cmd)
	f := cmd.Flags()
	f.StringVar(&root, "snapshotter-root", "",
		"folder of wangell-snapshotter (default: that of the instance, or "+containerd.SharedLazyRoot+")")
	f.StringVar(&compression, "compression", convert.EStargz, "estargz or zstdchunked")
	f.StringVar(&o.Resume, "resume", "", "folder that keeps finished layers if the command fails, for the next attempt")
	f.StringArrayVar(&o.Insecure, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST or HOST:PORT (repeatable)")
	out.RegisterTo(cmd)
	completeValues(cmd, "compression", []string{convert.EStargz, convert.ZstdChunked})
	// The flags exist.
	_ = errors.Join(cmd.MarkFlagDirname("resume"), cmd.MarkFlagDirname("snapshotter-root"))
	return cmd
}

// snapshotterRoot returns the folder of the snapshotter that an instance uses.
func snapshotterRoot(stateDir string) string {
	own := containerd.LazyRoot(stateDir)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return containerd.SharedLazyRoot
}

// reads are a snapshotter's recordings of first reads.
type reads struct {
	root string
	err  error
}

// files returns the files of a layer that were opened first.
func (r *reads) files(layer digest.Digest) []string {
	t, err := trace.Read(r.root, layer)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.err = err
	}
	return t.Files
}

// optimised is the output of image optimise.
type optimised struct {
	convert.Result
	Gain gain `json:"gain"`
}

// gain compares the files that are read first before and after. Bytes are packed; runs are pieces without a gap.
type gain struct {
	Files       int   `json:"files"`
	BytesBefore int64 `json:"bytesBefore"`
	RunsBefore  int   `json:"runsBefore"`
	BytesAfter  int64 `json:"bytesAfter"`
	RunsAfter   int   `json:"runsAfter"`
	Bytes       int64 `json:"bytes"` // of the result
}

// gainOf compares the layers of the first platform with files that come first.
func gainOf(res convert.Result, root string) (g gain) {
	for _, image := range res.Images {
		for _, l := range image.Before {
			t, err := trace.Read(root, l.Digest)
			if err != nil {
				continue // read before without an error
			}
			g.Files += len(t.Files)
			g.BytesBefore += min(int64(len(t.Blocks))*trace.BlockSize, l.Packed)
			g.RunsBefore += runsOf(t.Blocks)
		}
		for _, l := range image.After {
			g.Bytes += l.Packed
			g.BytesAfter += l.First
			if l.First > 0 {
				g.RunsAfter++
			}
		}
		if g.Files > 0 {
			return g
		}
		g = gain{}
	}
	return g
}

// runsOf returns the number of runs of consecutive numbers.
func runsOf(numbers []int) (runs int) {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(numbers), cmp.Compare[int]))
	for i, n := range sorted {
		if i == 0 || n != sorted[i-1]+1 {
			runs++
		}
	}
	return runs
}

// String says it in words.
func (g gain) String() string {
	const mb = 1e6
	return fmt.Sprintf("%d files are read first: %.1f MB in %d pieces before, %.1f MB in %d pieces now, of %.1f MB in all",
		g.Files, float64(g.BytesBefore)/mb, g.RunsBefore, float64(g.BytesAfter)/mb, g.RunsAfter, float64(g.Bytes)/mb)
}
