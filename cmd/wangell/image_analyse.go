// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
)

// imageVias are the values of --via.
var imageVias = []string{live.ViaContainerd, live.ViaCRI}

// imageSnapshotters are the values of --snapshotter.
var imageSnapshotters = []string{containerd.DefaultSnapshotter, erofs.Snapshotter}

// defaultColumns is the width of the report where standard output is no terminal.
const defaultColumns = 120

func newImageAnalyse() *cobra.Command {
	var o live.Options
	var out output
	var svg string
	cmd := &cobra.Command{
		Use:   "analyse REF|TAR",
		Short: "Explain where the time of an image pull goes, and what would make it faster",
		Long: `Pull an image into a throw-away containerd, which is removed afterwards, and explain the
pull: for each layer and for the whole, bytes, files, and the seconds of fetching, waiting,
decompressing, hashing, applying (writing files) and fsync; how they overlapped; and
what would make the pull faster, with the expected gain.

The times come from containerd: its events, its log and its content store. It reports
decompression, hashing and applying as one figure; a second pass over each stored layer, with
the same library, divides it. REF is a reference as in a manifest, with the credentials
of docker login. TAR is an OCI layout or in the format of docker save; it is served to
containerd by a registry on a loopback address. Root is needed.`,
		Example: `  sudo wangell image analyse docker.io/library/nginx:1.28
  sudo wangell image analyse --via cri --svg pull.svg registry.example/team/model:v3
  sudo wangell image analyse --snapshotter erofs --unpackers 4 registry.example/team/model:v3
  sudo wangell image analyse hello.tar -o json | jq .advice`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one image, as a reference or the path of a tarball")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"tar"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Image = args[0]
			if o.Via != live.ViaContainerd && o.Via != live.ViaCRI {
				return usage(cmd, "--via %q: want %s", o.Via, oneOf(imageVias))
			}
			if o.Snapshotter != containerd.DefaultSnapshotter && o.Snapshotter != erofs.Snapshotter {
				return usage(cmd, "--snapshotter %q: want %s", o.Snapshotter, oneOf(imageSnapshotters))
			}
			if o.Unpackers < 1 {
				return usage(cmd, "--unpackers %d: want 1 or more", o.Unpackers)
			}
			report, err := analyseImage(cmd, o)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := writeSVG(svg, report); err != nil {
					return err
				}
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(report)
			}
			columns, _, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				columns = defaultColumns
			}
			return pullstat.WriteText(os.Stdout, report, columns)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Via, "via", live.ViaContainerd,
		"client that pulls: containerd (its client library, as wangell up does) or cri (its CRI plugin, as kubelet does)")
	f.StringVar(&o.Program, "containerd-program", "containerd", "program of containerd, in $PATH or as a path")
	f.StringVar(&o.Dir, "dir", live.DefaultDir,
		"folder on the disk to measure; everything made below it is removed")
	f.StringVar(&o.Snapshotter, "snapshotter", containerd.DefaultSnapshotter,
		"snapshotter to unpack for: overlayfs, or erofs, which needs containerd 2.2.3, Linux 6.12 and mkfs.erofs 1.7")
	f.IntVar(&o.Unpackers, "unpackers", 1, "layers to unpack at once; more than 1 needs containerd 2.2.3 or later")
	f.StringArrayVar(&o.Insecure, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST or HOST:PORT (repeatable)")
	f.StringVar(&svg, "svg", "", "also write the chart to this file, as SVG")
	out.RegisterTo(cmd)
	completeValues(cmd, "via", imageVias)
	completeValues(cmd, "snapshotter", imageSnapshotters)
	// The flags exist.
	_ = cmd.MarkFlagDirname("dir")
	_ = cmd.MarkFlagFilename("svg", "svg")
	return cmd
}

// analyseImage pulls an image and explains the pull, with a line of progress if standard error is a terminal.
func analyseImage(cmd *cobra.Command, o live.Options) (pullstat.Report, error) {
	var stop func()
	o.Progress, stop = showProgress()
	defer stop()
	recording, err := live.Run(cmd.Context(), o)
	if err != nil {
		return pullstat.Report{}, err
	}
	report, err := pullstat.Analyse(recording)
	if err != nil {
		return report, fmt.Errorf("analyse %s: %w", o.Image, err)
	}
	return report, nil
}

func writeSVG(name string, r pullstat.Report) error {
	var b bytes.Buffer
	if err := pullstat.WriteSVG(&b, r); err != nil {
		return err
	}
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	return nil
}
