// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/show/cli"
)

func newImageLoad(g *globals) *cobra.Command {
	p := &places{g: g}
	tag := ""
	cmd := &cobra.Command{
		Use:   "load FILE...",
		Short: "Load images from tarballs into the instance's containerd",
		Long: `Load the images of tarballs written by 'wangell image build', docker save or any tool that
writes OCI layouts. A dash (-) stands for standard input. The instance need not run.

Names are completed as Docker does: local/x:v1 becomes docker.io/local/x:v1. A name leads to
the new image once that is complete and unpacked; until then, and after a failure, it leads
to the old one.`,
		Example: `  sudo wangell image load hello.tar
  docker save nginx:1.28 | sudo wangell image load -
  sudo wangell image load --tag registry.example.com/app:v2 layout.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name a tarball, or - for standard input")
			}
			if len(args) > 1 && tag != "" {
				return errors.New("--tag is for a single tarball")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withImages(cmd, func(ctx context.Context, c *client.Client, snapshotter string) error {
				for _, name := range args {
					if err := loadImages(ctx, c, snapshotter, tag, name); err != nil {
						return fmt.Errorf("load %s: %w", name, err)
					}
				}
				return nil
			})
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&tag, "tag", "", "name of the only image in the tarball, instead of its own")
	return cmd
}

// loadImages imports one tarball and prints the names of its images.
func loadImages(ctx context.Context, c *client.Client, snapshotter, tag, name string) error {
	var from io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	names, err := image.Import(ctx, c, snapshotter, tag, from)
	for _, n := range names {
		fmt.Println("loaded", n)
	}
	return err
}

// imageLine is a line of image ls.
type imageLine struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // in bytes, as stored: layers may be compressed
	Updated time.Time `json:"updated"`
}

func newImageList(g *globals) *cobra.Command {
	p := &places{g: g}
	var out output
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the images in the instance's containerd",
		Example: `  sudo wangell image ls
  sudo wangell image ls -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withContainerd(cmd, func(ctx context.Context, c *client.Client) error {
				lines, err := listImages(ctx, c)
				if err != nil {
					return err
				}
				if out == cli.OutputJSON {
					return cli.PrintJSON(lines)
				}
				return printImages(lines)
			})
		},
	}
	p.register(cmd)
	out.RegisterTo(cmd)
	return cmd
}

func listImages(ctx context.Context, c *client.Client) ([]imageLine, error) {
	list, err := c.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	lines := []imageLine{}
	for _, i := range list {
		size, err := i.Size(ctx)
		if err != nil {
			// An image that lacks a part is listed all the same.
			slog.Warn("size of image is unknown", "image", i.Name(), "error", err)
		}
		lines = append(lines, imageLine{i.Name(), i.Target().Digest.String(), size, i.Metadata().UpdatedAt})
	}
	slices.SortFunc(lines, func(a, b imageLine) int { return cmp.Compare(a.Name, b.Name) })
	return lines, nil
}

func printImages(lines []imageLine) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tUPDATED")
	for _, l := range lines {
		digest := l.Digest
		if len(digest) > len("sha256:")+12 {
			digest = digest[:len("sha256:")+12]
		}
		updated := l.Updated.Local().Format(time.DateTime)
		fmt.Fprintf(t, "%s\t%s\t%.1f MB\t%s\n", l.Name, digest, float64(l.Size)/1e6, updated)
	}
	return t.Flush()
}
