// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/show/cli"
)

func newImageConvert() *cobra.Command {
	var o convert.Options
	var out output
	var layers, compression string
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Rewrite the layers of an image so that it is pulled faster",
		Long: `Copy an image and rewrite its layers: with another compression, joined, or cut into pieces
that are fetched and unpacked at once. Its file system and its configuration stay as they
are; the same input always gives the same digest.

SRC and DST are references, with the credentials of docker login, or paths of tarballs
(OCI layout, docker save). DST gets its name last: a command that fails or is interrupted
leaves at most blobs without a name. With --resume, finished layers are kept for the next
attempt; otherwise the temporary folder (in $TMPDIR) is removed.

--layers split=SIZE cuts layers into pieces of at most SIZE, unpacked, and joins neighbours
that are smaller; a file that is larger has a layer of its own. containerd unpacks several
layers at once only if it is told to: see docs/images/nodes.md.`,
		Example: `  wangell image convert registry.example/team/model:v3 registry.example/team/model:v3-zstd
  wangell image convert --layers split=64MB --compression zstd --verify model.tar model-split.tar
  wangell image convert --platform linux/amd64 --compression none docker.io/library/nginx:1.28 nginx.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("name two images, the source and the result: references or paths of tarballs")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"tar"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.Source, o.Destination = args[0], args[1]
			if o.Layers, err = convert.ParseLayers(layers); err != nil {
				return usage(cmd, "--layers %v", err)
			}
			if o.Compression, err = convert.ParseCompression(compression); err != nil {
				return usage(cmd, "--compression %v", err)
			}
			if len(o.Platforms) == 1 && o.Platforms[0] == allPlatforms {
				o.Platforms = nil
			}
			var stop func()
			o.Progress, stop = showProgress()
			res, err := convert.Run(cmd.Context(), o)
			stop()
			if err != nil {
				return err
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(res)
			}
			return printConverted(res)
		},
	}
	f := cmd.Flags()
	f.StringVar(&layers, "layers", convert.Keep, "keep, squash (into one) or split=SIZE, such as split=64MB")
	f.StringVar(&compression, "compression", convert.Zstd,
		"none, gzip, zstd[:LEVEL], or for lazy pulling estargz or zstdchunked")
	f.StringSliceVar(&o.Platforms, "platform", []string{allPlatforms},
		"platforms to convert, such as linux/amd64,linux/arm64; all: those of the source")
	f.StringVar(&o.Tag, "tag", "", "name of the image in the tarball DST (default: that of SRC)")
	f.BoolVar(&o.Verify, "verify", false,
		"compare the file systems of SRC and of the result, every byte and attribute, before DST gets its name")
	f.StringVar(&o.Resume, "resume", "", "folder that keeps finished layers if the command fails, for the next attempt")
	f.StringArrayVar(&o.Insecure, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST or HOST:PORT (repeatable)")
	out.RegisterTo(cmd)
	completeValues(cmd, "layers", []string{convert.Keep, convert.Squash, convert.Split + "=64MB"})
	completeValues(cmd, "compression", convert.Compressions)
	// The flag exists.
	_ = cmd.MarkFlagDirname("resume")
	return cmd
}

// allPlatforms is the value of --platform for every platform.
const allPlatforms = "all"

// printConverted prints what became of an image.
func printConverted(res convert.Result) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(t, "PLATFORM\tLAYERS\tLARGEST\tPACKED\tDIGEST")
	for _, i := range res.Images {
		layers, largest, size := sums(i.Before)
		layersAfter, largestAfter, sizeAfter := sums(i.After)
		fmt.Fprintf(t, "%s\t%d → %d\t%.1f → %.1f MB\t%.1f → %.1f MB\t%s\n", i.Platform, layers, layersAfter, largest,
			largestAfter, size, sizeAfter, i.Digest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range res.Dropped {
		fmt.Fprintf(os.Stderr, "left out: manifest %s: %s\n", d.Digest, d.Reason)
	}
	verified := ""
	if res.Verified {
		verified = " (the file systems are equal)"
	}
	_, err := fmt.Printf("%s@%s%s\n", res.Destination, res.Digest, verified)
	return err
}

// sums returns the number of layers, and the largest one's and the total size, packed, in MB.
func sums(layers []convert.Layer) (count int, largest, total float64) {
	for _, l := range layers {
		size := float64(l.Packed) / 1e6
		largest, total = max(largest, size), total+size
	}
	return len(layers), largest, total
}
